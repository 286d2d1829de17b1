-- Rejects changes to a registered definition.
CREATE OR REPLACE FUNCTION caseworker_guard_graph() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF OLD.definition IS NULL OR NEW.definition IS NOT NULL
        OR (NEW.tenant_id, NEW.name, NEW.version, NEW.sha256, NEW.created_at, NEW.kind) IS DISTINCT FROM (OLD.tenant_id, OLD.name, OLD.version, OLD.sha256, OLD.created_at, OLD.kind) THEN
        RAISE EXCEPTION 'version % of definition % may be deleted, not changed', OLD.version, OLD.name
            USING ERRCODE = 'check_violation', CONSTRAINT = 'graphs_versions_never_change';
    END IF;
    RETURN NEW;
END $$;
