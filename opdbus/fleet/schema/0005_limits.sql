-- Limits of hosts: how much one may send at once and in a day, so that none fills the server's disk.

ALTER TABLE opdbus.fleet
  ADD COLUMN daily_bytes bigint NOT NULL DEFAULT 1073741824 CHECK (daily_bytes >= 16777216);

ALTER TABLE opdbus.host
  -- in place of the fleet's; null: the fleet's
  ADD COLUMN daily_bytes bigint CHECK (daily_bytes >= 16777216),
  -- bytes of states and history that it sent on this day (UTC)
  ADD COLUMN sent_on date NOT NULL DEFAULT 'epoch',
  ADD COLUMN sent_bytes bigint NOT NULL DEFAULT 0,
  -- since when its batches are refused, as they are more than that
  ADD COLUMN refused_at timestamptz,
  -- numbers of its objects, and of those that drifted: a list of hosts counts no rows
  ADD COLUMN objects integer NOT NULL DEFAULT 0,
  ADD COLUMN drifted integer NOT NULL DEFAULT 0;
UPDATE opdbus.host SET
  objects = (SELECT count(*) FROM opdbus.object WHERE object.host = host.host),
  drifted = (SELECT count(*) FROM opdbus.drift WHERE drift.host = host.host);

-- A batch of the sender has at most 500 rows.
ALTER TABLE opdbus.staged_object ADD CHECK (place BETWEEN 0 AND 4095);
ALTER TABLE opdbus.staged_change ADD CHECK (octet_length(chained) <= 1048576);

CREATE FUNCTION opdbus.own_seq() RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT seq FROM opdbus.host WHERE role = session_user
$$;

-- The functions stand in subqueries, so that each is called once for a statement.
DROP POLICY own ON opdbus.staged_object;
CREATE POLICY own ON opdbus.staged_object TO opdbus_host
  USING (host = (SELECT opdbus.own_host()));
DROP POLICY own ON opdbus.staged_change;
CREATE POLICY own ON opdbus.staged_change TO opdbus_host
  USING (host = (SELECT opdbus.own_host()))
  WITH CHECK (host = (SELECT opdbus.own_host())
    AND seq - (SELECT opdbus.own_seq()) BETWEEN -1000 AND 1000);

-- Counts what a host has staged; returns false, and counts nothing, if that is more than it may
-- send today.
CREATE FUNCTION opdbus.count_sent(own integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  today date := (now() AT TIME ZONE 'UTC')::date;
  staged bigint := (
    SELECT coalesce(sum(octet_length(body)), 0) FROM opdbus.staged_object WHERE host = own
  ) + (
    SELECT coalesce(sum(octet_length(chained) + pg_column_size(details)), 0)
    FROM opdbus.staged_change WHERE host = own
  );
BEGIN
  UPDATE opdbus.host SET sent_on = today, refused_at = NULL,
    sent_bytes = staged + CASE WHEN sent_on = today THEN sent_bytes ELSE 0 END
    WHERE host = own AND staged + CASE WHEN sent_on = today THEN sent_bytes ELSE 0 END
      <= coalesce(daily_bytes, (SELECT fleet.daily_bytes FROM opdbus.fleet));
  IF FOUND THEN
    RETURN true;
  END IF;
  UPDATE opdbus.host SET refused_at = coalesce(refused_at, now()), seen_at = now()
    WHERE host = own;
  RETURN false;
END $$;

-- As before; null, with nothing stored, if the host has sent too much today.
CREATE OR REPLACE FUNCTION opdbus.apply_batch(given_epoch integer, remaining bigint)
RETURNS integer[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  own integer := opdbus.require_own_host();
  known opdbus.host;
  lacking integer[];
BEGIN
  SELECT * INTO known FROM opdbus.host WHERE host = own FOR UPDATE;
  IF known.epoch <> given_epoch THEN
    RAISE EXCEPTION 'another sender of this host has begun epoch %', known.epoch
      USING ERRCODE = 'serialization_failure';
  END IF;
  IF NOT opdbus.count_sent(own) THEN
    DELETE FROM opdbus.staged_change WHERE host = own;
    DELETE FROM opdbus.staged_object WHERE host = own;
    RETURN NULL;
  END IF;
  PERFORM opdbus.apply_changes(own);
  lacking := opdbus.apply_objects(own, known.numerics);
  UPDATE opdbus.host SET seen_at = now(), backlog = remaining,
    objects = (SELECT count(*) FROM opdbus.object WHERE object.host = own),
    current_at = CASE WHEN remaining = 0 THEN now() ELSE current_at END
    WHERE host = own;
  RETURN lacking;
END $$;

-- As before, with a limit of its size.
CREATE OR REPLACE FUNCTION opdbus.put_drift(rows jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  own integer := opdbus.require_own_host();
  stored integer;
BEGIN
  IF pg_column_size(rows) > 33554432 THEN
    RAISE EXCEPTION 'the drift of one host has at most 32 MiB' USING ERRCODE = 'data_exception';
  END IF;
  IF jsonb_typeof(rows) <> 'array' OR EXISTS (
      SELECT FROM jsonb_array_elements(rows) AS r WHERE NOT opdbus.are_rows(r->6, 4)) THEN
    RAISE EXCEPTION 'the fields of drift are no lists of four texts'
      USING ERRCODE = 'data_exception';
  END IF;
  PERFORM FROM opdbus.host WHERE host = own FOR UPDATE;
  DELETE FROM opdbus.drift WHERE host = own;
  INSERT INTO opdbus.drift
    SELECT own, r->>0, r->>1, r->>2, r->>3, r->>4, (r->>5)::bigint, r->6
    FROM jsonb_array_elements(rows) AS r ON CONFLICT DO NOTHING;
  GET DIAGNOSTICS stored = ROW_COUNT;
  UPDATE opdbus.host SET drifted = stored WHERE host = own;
END $$;

-- A host whose history begins anew again and again would fill these tables.
ALTER TABLE opdbus.epoch ADD CHECK (epoch <= 10000);

REVOKE EXECUTE ON FUNCTION opdbus.own_seq(), opdbus.count_sent(integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION opdbus.own_seq() TO opdbus_host;
