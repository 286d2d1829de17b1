-- Rejects changes to the final status of a call.
CREATE OR REPLACE FUNCTION caseworker_guard_call() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION 'call % of run % has ended as %', OLD.seq, OLD.run_id, OLD.status
        USING ERRCODE = 'check_violation', CONSTRAINT = 'calls_terminal_is_final';
END $$;
