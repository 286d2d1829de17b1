-- Deletes rows that belong to deleted runs without a foreign key.
CREATE OR REPLACE FUNCTION caseworker_erase_with_runs() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    DELETE FROM calls USING erased
    WHERE calls.tenant_id = erased.tenant_id AND calls.run_id = erased.run_id;
    DELETE FROM events USING erased
    WHERE events.tenant_id = erased.tenant_id AND events.run_id = erased.run_id;
    RETURN NULL;
END
$$;
