"""Keep tenants apart by row-level security.

The transactions of requests switch to the role ``caseworker_tenant``, which sees the rows of one
tenant. The role needs a user who may create roles; without one everything works as before, and the
function ``caseworker_keep_tenants_apart`` does the rest once somebody has made it. Revisions that
make a table with a ``tenant_id`` call it again.

Revision: 20261122_2105
Revises: 20261122_2100
"""

from alembic import op

revision = "20261122_2105"
down_revision = "20261122_2100"
branch_labels = None
depends_on = None

_MAY_SWITCH = """
CREATE FUNCTION caseworker_may_switch() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE before text := current_setting('role');
BEGIN
    PERFORM set_config('role', 'caseworker_tenant', true);
    PERFORM set_config('role', before, true);
    RETURN true;
EXCEPTION WHEN insufficient_privilege OR invalid_parameter_value OR undefined_object THEN
    RETURN false;
END $$
"""

_KEEP_APART = """
CREATE FUNCTION caseworker_keep_tenants_apart() RETURNS boolean LANGUAGE plpgsql AS $$
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
END $$
"""

_AS_BEFORE = """
DO $$
DECLARE place record;
BEGIN
    FOR place IN SELECT polrelid::regclass AS name FROM pg_policy WHERE polname = 'all_tenants'
    LOOP
        EXECUTE format('ALTER TABLE %s NO FORCE ROW LEVEL SECURITY, DISABLE ROW LEVEL SECURITY',
            place.name);
        EXECUTE format('DROP POLICY IF EXISTS own_tenant ON %s', place.name);
        EXECUTE format('DROP POLICY all_tenants ON %s', place.name);
        EXECUTE format('REVOKE ALL ON %s FROM caseworker_tenant', place.name);
    END LOOP;
    FOR place IN SELECT c.oid::regclass AS name FROM pg_class c WHERE c.relkind = 'v'
        AND c.reloptions @> ARRAY['security_invoker=true']
    LOOP
        EXECUTE format('ALTER VIEW %s RESET (security_invoker)', place.name);
        EXECUTE format('REVOKE ALL ON %s FROM caseworker_tenant', place.name);
    END LOOP;
END $$
"""


def upgrade() -> None:
    """Make the function, and call it."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(_MAY_SWITCH)
    op.execute(_KEEP_APART)
    op.execute("SELECT caseworker_keep_tenants_apart()")


def downgrade() -> None:
    """Let every role see what it is granted; the role stays, other databases may use it."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(_AS_BEFORE)
    op.execute("DROP FUNCTION caseworker_keep_tenants_apart()")
    op.execute("DROP FUNCTION caseworker_may_switch()")
