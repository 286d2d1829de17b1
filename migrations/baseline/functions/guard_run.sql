-- Rejects changes to a terminal status, a lower fence, and the withdrawal of a cancel request.
CREATE OR REPLACE FUNCTION caseworker_guard_run() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    begins boolean := NEW.status = 'running' AND OLD.status IS DISTINCT FROM 'running';
BEGIN
    IF NEW.status IS DISTINCT FROM OLD.status AND (CASE coalesce(OLD.status, 'pending cancel')
        WHEN 'pending cancel' THEN NEW.status IN ('queued', 'running', 'cancelled')
        WHEN 'queued' THEN NEW.status IN ('running', 'cancelled', 'halted')
        WHEN 'running' THEN NEW.status <> 'running'
        WHEN 'waiting' THEN NEW.status NOT IN ('waiting', 'running')
        ELSE false
    END) IS NOT TRUE THEN
        RAISE EXCEPTION 'run % may not go from % to %', OLD.run_id, OLD.status, NEW.status
            USING ERRCODE = 'check_violation', CONSTRAINT = 'runs_lawful_transition';
    END IF;
    IF NEW.fence < OLD.fence OR (begins AND NEW.fence = OLD.fence) THEN
        RAISE EXCEPTION 'the fence of run % must rise with every claim', OLD.run_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'runs_fence_rises';
    END IF;
    IF OLD.request IS NOT NULL AND OLD.cancel_requested_at IS NOT NULL
        AND NEW.cancel_requested_at IS DISTINCT FROM OLD.cancel_requested_at THEN
        RAISE EXCEPTION 'the cancel request of run % may not be taken back', OLD.run_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'runs_cancel_request_stays';
    END IF;
    RETURN NEW;
END $$;
