-- What workers need besides: one worker at a time looks at a host's vectors, and pruned rows of
-- history leave the hash that the next row follows.

-- The worker that has a host's row locked looks at its vectors; hosts cannot lock rows here.
CREATE TABLE opdbus.examination (
  host integer PRIMARY KEY REFERENCES opdbus.host ON DELETE CASCADE
);

ALTER TABLE opdbus.epoch
  -- rows up to this one were pruned; the next row follows this hash
  ADD COLUMN pruned_seq bigint NOT NULL DEFAULT 0,
  ADD COLUMN pruned_hash bytea;

-- Vectors that hosts computed are looked at again in this order.
DROP INDEX opdbus.vector_sent_by;
CREATE INDEX vector_sent_by ON opdbus.vector (sent_by, digest) WHERE sent_by IS NOT NULL;

-- Removes a model with its vectors, unless it is wanted, serves, or is the model of a host.
CREATE FUNCTION opdbus.drop_numerics(unused smallint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
  LOCK TABLE opdbus.numerics IN SHARE ROW EXCLUSIVE MODE;
  IF EXISTS (SELECT FROM opdbus.fleet WHERE unused IN (wanted, serving))
    OR EXISTS (SELECT FROM opdbus.host WHERE numerics = unused)
    OR NOT EXISTS (SELECT FROM opdbus.numerics WHERE numerics = unused) THEN
    RETURN false;
  END IF;
  DELETE FROM opdbus.embedding_task WHERE numerics = unused;
  DELETE FROM opdbus.offered_vector WHERE numerics = unused;
  EXECUTE format('DROP TABLE IF EXISTS opdbus.vector_%s', unused);
  DELETE FROM opdbus.numerics WHERE numerics = unused;
  RETURN true;
END $$;

REVOKE EXECUTE ON FUNCTION opdbus.drop_numerics(smallint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION opdbus.drop_numerics(smallint) TO opdbus_worker;
GRANT INSERT, UPDATE ON opdbus.examination TO opdbus_worker;
GRANT UPDATE (pruned_seq, pruned_hash) ON opdbus.epoch TO opdbus_worker;
