-- Rejects changes to a decision.
CREATE OR REPLACE FUNCTION caseworker_guard_approval() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION 'approval % of run % is decided', OLD.approval_id, OLD.run_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'approvals_decided_once';
END $$;
