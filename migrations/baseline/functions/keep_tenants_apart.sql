-- Enables row-level security on each table with a tenant_id that does not have it yet. Returns false if the role
-- caseworker_tenant can neither be created nor used. Revisions that create such a table call it again.
CREATE OR REPLACE FUNCTION caseworker_keep_tenants_apart() RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE place record;
BEGIN
    IF NOT caseworker_may_switch() THEN
        BEGIN
            IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'caseworker_tenant') THEN
                CREATE ROLE caseworker_tenant NOLOGIN;
            END IF;
            EXECUTE format('GRANT caseworker_tenant TO %I', current_user);
        EXCEPTION
            WHEN insufficient_privilege THEN
                RAISE WARNING 'tenants are kept apart by the service alone: % may not make or use '
                    'the role caseworker_tenant; docs/security.md says how to add it', current_user;
                RETURN false;
            WHEN duplicate_object OR unique_violation THEN NULL;
        END;
    END IF;
    FOR place IN
        SELECT c.oid::regclass AS name, c.relname AS bare, c.relkind AS kind, EXISTS (
            SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND p.polname = 'all_tenants'
        ) AS done
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id'
        WHERE c.relkind IN ('r', 'p', 'v') AND c.relnamespace = current_schema()::regnamespace
            AND NOT a.attisdropped
        ORDER BY c.relkind = 'v'
    LOOP
        CONTINUE WHEN place.done;
        IF place.kind = 'v' THEN
            EXECUTE format('ALTER VIEW %s SET (security_invoker = true)', place.name);
            EXECUTE format('GRANT SELECT ON %s TO caseworker_tenant', place.name);
            CONTINUE;
        END IF;
        EXECUTE format('CREATE POLICY all_tenants ON %s TO %I USING (true)',
            place.name, current_user);
        IF place.bare <> 'api_keys' THEN
            EXECUTE format('CREATE POLICY own_tenant ON %s TO caseworker_tenant '
                'USING (tenant_id = current_setting(''caseworker.tenant'', true))', place.name);
            EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO caseworker_tenant',
                place.name);
        END IF;
        EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY',
            place.name);
    END LOOP;
    RETURN true;
END $$;
