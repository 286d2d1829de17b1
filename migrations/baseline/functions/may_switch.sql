-- Returns whether this user may use the role caseworker_tenant.
CREATE OR REPLACE FUNCTION caseworker_may_switch() RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE before text := current_setting('role');
BEGIN
    PERFORM set_config('role', 'caseworker_tenant', true);
    PERFORM set_config('role', before, true);
    RETURN true;
EXCEPTION WHEN insufficient_privilege OR invalid_parameter_value OR undefined_object THEN
    RETURN false;
END $$;
