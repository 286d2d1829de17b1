CREATE TRIGGER approvals_guard BEFORE UPDATE ON approvals FOR EACH ROW WHEN (OLD.decision IS NOT NULL) EXECUTE FUNCTION caseworker_guard_approval();
CREATE TRIGGER calls_guard BEFORE UPDATE OF status ON calls FOR EACH ROW WHEN (OLD.status IN ('success', 'fail', 'halt') AND NEW.status <> OLD.status) EXECUTE FUNCTION caseworker_guard_call();
CREATE TRIGGER graphs_guard BEFORE UPDATE ON definitions FOR EACH ROW EXECUTE FUNCTION caseworker_guard_graph();
CREATE TRIGGER runs_guard BEFORE UPDATE OF status, fence, cancel_requested_at ON runs FOR EACH ROW EXECUTE FUNCTION caseworker_guard_run();
CREATE TRIGGER runs_take_what_they_stored AFTER DELETE ON runs REFERENCING OLD TABLE AS erased FOR EACH STATEMENT EXECUTE FUNCTION caseworker_erase_with_runs();
