-- Limits of hosts: how much one may send at once and in a day, and how many objects it may have, so
-- that none fills the server's disk. A refusal says which limit it was.

ALTER TABLE opdbus.fleet
  ADD COLUMN daily_bytes bigint NOT NULL DEFAULT 1073741824 CHECK (daily_bytes >= 16777216),
  ADD COLUMN most_objects integer NOT NULL DEFAULT 200000 CHECK (most_objects > 0);

ALTER TABLE opdbus.host
  -- in place of the fleet's; null: the fleet's
  ADD COLUMN daily_bytes bigint CHECK (daily_bytes >= 16777216),
  ADD COLUMN most_objects integer CHECK (most_objects > 0),
  -- bytes of states and history that it sent on this day (UTC)
  ADD COLUMN sent_on date NOT NULL DEFAULT 'epoch',
  ADD COLUMN sent_bytes bigint NOT NULL DEFAULT 0,
  -- since when its batches are refused, and why
  ADD COLUMN refused_at timestamptz,
  ADD COLUMN refusal text,
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

-- These are in PL/pgSQL, which keeps plans for a session.

-- Bytes that a host has staged in one of the tables.
CREATE FUNCTION opdbus.staged_bytes(own integer, staging name) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF staging = 'staged_object' THEN
    RETURN (SELECT coalesce(sum(octet_length(body)), 0) FROM opdbus.staged_object
            WHERE host = own);
  END IF;
  RETURN (SELECT coalesce(sum(octet_length(chained) + pg_column_size(details)), 0)
          FROM opdbus.staged_change WHERE host = own);
END $$;

CREATE FUNCTION opdbus.limit_staged() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  -- a batch of the sender has 12 MiB of states at most, and as much history
  IF opdbus.staged_bytes(opdbus.own_host(), TG_TABLE_NAME) > 67108864 THEN
    RAISE EXCEPTION 'a host may stage 64 MiB at a time' USING ERRCODE = 'program_limit_exceeded';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER limit_staged AFTER INSERT ON opdbus.staged_object
  FOR EACH STATEMENT EXECUTE FUNCTION opdbus.limit_staged();
CREATE TRIGGER limit_staged AFTER INSERT ON opdbus.staged_change
  FOR EACH STATEMENT EXECUTE FUNCTION opdbus.limit_staged();

-- By how much the staged states change the number of a host's objects.
CREATE FUNCTION opdbus.count_new(own integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN (SELECT coalesce(sum(stays::integer - existed::integer), 0) FROM (
    SELECT bool_or(has_body) OR existed AND NOT bool_or(NOT has_body) AS stays, existed
    FROM (
      -- no EXISTS, for which PostgreSQL may read all objects of the host
      SELECT plugin, kind, name, body IS NOT NULL AS has_body, (
        SELECT true FROM opdbus.object WHERE object.host = own AND object.plugin = staged.plugin
          AND object.kind = staged.kind AND object.name = staged.name) IS NOT NULL AS existed
      FROM opdbus.staged_object AS staged WHERE host = own
    ) AS rows GROUP BY plugin, kind, name, existed
  ) AS names);
END $$;

-- Notes that a host's batch was refused, and removes what it staged.
CREATE FUNCTION opdbus.refuse(own integer, reason text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE opdbus.host SET refused_at = coalesce(refused_at, now()), refusal = reason, seen_at = now()
    WHERE host = own;
  DELETE FROM opdbus.staged_change WHERE host = own;
  DELETE FROM opdbus.staged_object WHERE host = own;
END $$;

CREATE FUNCTION opdbus.own_refusal() RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT refusal FROM opdbus.host WHERE role = session_user
$$;

-- As before; null, with nothing stored, for a host over a limit. The number of its objects and what
-- it sent today are kept by what changes.
CREATE OR REPLACE FUNCTION opdbus.apply_batch(given_epoch integer, remaining bigint)
RETURNS integer[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  own integer := opdbus.require_own_host();
  known opdbus.host;
  today date := (now() AT TIME ZONE 'UTC')::date;
  most_bytes bigint;
  sent bigint;
  most integer;
  more integer;
  lacking integer[];
BEGIN
  SELECT * INTO known FROM opdbus.host WHERE host = own FOR UPDATE;
  IF known.epoch <> given_epoch THEN
    RAISE EXCEPTION 'another sender of this host has begun epoch %', known.epoch
      USING ERRCODE = 'serialization_failure';
  END IF;
  most := coalesce(known.most_objects, (SELECT most_objects FROM opdbus.fleet));
  more := opdbus.count_new(own);
  -- fewer objects are taken, however many there are
  IF more > 0 AND known.objects + more > most THEN
    PERFORM opdbus.refuse(own, format('it has %s objects and sends %s new ones, and may have %s',
                                      known.objects, more, most));
    RETURN NULL;
  END IF;
  most_bytes := coalesce(known.daily_bytes, (SELECT daily_bytes FROM opdbus.fleet));
  sent := opdbus.staged_bytes(own, 'staged_object') + opdbus.staged_bytes(own, 'staged_change')
    + CASE WHEN known.sent_on = today THEN known.sent_bytes ELSE 0 END;
  IF sent > most_bytes THEN
    PERFORM opdbus.refuse(own, format('it has sent as much today as it may, %s MiB',
                                      most_bytes >> 20));
    RETURN NULL;
  END IF;
  PERFORM opdbus.apply_changes(own);
  lacking := opdbus.apply_objects(own, known.numerics);
  UPDATE opdbus.host SET seen_at = now(), backlog = remaining, objects = objects + more,
    sent_on = today, sent_bytes = sent, refused_at = NULL, refusal = NULL,
    current_at = CASE WHEN remaining = 0 THEN now() ELSE current_at END
    WHERE host = own;
  RETURN lacking;
END $$;

-- As before, but for the count of all objects, which `apply_batch` has.
CREATE OR REPLACE FUNCTION opdbus.apply_objects(own integer, model smallint) RETURNS integer[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
  lacking integer[];
  goal smallint := (SELECT wanted FROM opdbus.fleet);
  trusted boolean := (SELECT vector_fault IS NULL FROM opdbus.host WHERE host = own);
BEGIN
  DELETE FROM opdbus.arrived_object WHERE host = own;
  INSERT INTO opdbus.arrived_object
    SELECT own, place, plugin, kind, name, coalesce(updated_at, 0),
      sha256(convert_to(body, 'UTF8')), sha256(convert_to(parsed->>'text', 'UTF8')), parsed
    FROM opdbus.staged_object CROSS JOIN LATERAL (SELECT body::jsonb AS parsed) AS json
    WHERE host = own;
  IF EXISTS (SELECT FROM opdbus.arrived_object WHERE host = own AND body IS NOT NULL AND
             (body->>'plugin', body->>'kind', body->>'name')
             IS DISTINCT FROM (plugin, kind, name)) THEN
    RAISE EXCEPTION 'a state names another object than its row' USING ERRCODE = 'data_exception';
  END IF;
  -- what readers could not read: questions are about all hosts
  IF EXISTS (SELECT FROM opdbus.arrived_object WHERE host = own AND body IS NOT NULL AND (
      coalesce(jsonb_typeof(body->'declared'), 'null') NOT IN ('object', 'null')
      OR coalesce(jsonb_typeof(body->'observed'), 'null') NOT IN ('object', 'null')
      OR coalesce(jsonb_typeof(body->'text'), '') <> 'string'
      OR jsonb_path_exists(body, '$.**{200}')
      OR jsonb_path_exists(body, '$.** ? (@.type() == "number" && (@ > 1e300 || @ < -1e300))')
    )) THEN
    RAISE EXCEPTION 'a state has no text, or values that are no objects, too deep or too large'
      USING ERRCODE = 'data_exception';
  END IF;
  -- rows are inserted in the order of digests, so that batches of two hosts cannot deadlock
  WITH new AS (
    INSERT INTO opdbus.text
      SELECT DISTINCT ON (text) text, body->>'text', opdbus.words(body->>'text')
      FROM opdbus.arrived_object WHERE host = own AND body IS NOT NULL ORDER BY text
      ON CONFLICT DO NOTHING RETURNING digest)
  INSERT INTO opdbus.embedding_task (numerics, digest, not_before)
    SELECT goal, digest,
      CASE WHEN goal = model AND trusted THEN now() + interval '1 minute' ELSE now() END
    FROM new WHERE goal IS NOT NULL ON CONFLICT DO NOTHING;
  INSERT INTO opdbus.content
    SELECT DISTINCT ON (content) content, plugin, kind, name, coalesce(body->>'source', ''),
      nullif(body->'declared', 'null'), nullif(body->'observed', 'null'), text,
      opdbus.terms(jsonb_build_array(body->'declared', body->'observed'))
    FROM opdbus.arrived_object WHERE host = own AND body IS NOT NULL ORDER BY content
    ON CONFLICT DO NOTHING;
  DELETE FROM opdbus.object USING opdbus.arrived_object AS arrived
    WHERE object.host = own AND arrived.host = own AND arrived.body IS NULL
      AND (object.plugin, object.kind, object.name) = (arrived.plugin, arrived.kind, arrived.name);
  INSERT INTO opdbus.object
    SELECT DISTINCT ON (plugin, kind, name) own, plugin, kind, name, content, updated_at
    FROM opdbus.arrived_object WHERE host = own AND body IS NOT NULL ORDER BY plugin, kind, name, place DESC
    ON CONFLICT (host, plugin, kind, name)
    DO UPDATE SET content = excluded.content, updated_at = excluded.updated_at
    WHERE (object.content, object.updated_at) <> (excluded.content, excluded.updated_at);
  IF trusted THEN
    SELECT array_agg(place ORDER BY place) INTO lacking FROM (
      SELECT DISTINCT ON (text) place, text FROM opdbus.arrived_object
      WHERE host = own AND body IS NOT NULL ORDER BY text, place) AS texts
    WHERE NOT EXISTS (SELECT FROM opdbus.vector WHERE numerics = model AND digest = texts.text)
      AND NOT EXISTS (SELECT FROM opdbus.offered_vector AS offered
                      WHERE offered.numerics = model AND offered.digest = texts.text);
  END IF;
  DELETE FROM opdbus.staged_object WHERE host = own;
  DELETE FROM opdbus.arrived_object WHERE host = own;
  RETURN coalesce(lacking, '{}');
END $$;

-- As before; a host that changed its model has no offers of the one before, which would add up.
CREATE OR REPLACE FUNCTION opdbus.offer_vectors(texts bytea[], vectors text[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
  own integer := opdbus.require_own_host();
  taken integer;
BEGIN
  DELETE FROM opdbus.offered_vector AS old USING opdbus.host
    WHERE host.host = own AND old.host = own AND old.numerics <> host.numerics;
  INSERT INTO opdbus.offered_vector
    SELECT own, host.numerics, given.digest, given.v::halfvec
    FROM opdbus.host
    JOIN opdbus.numerics USING (numerics)
    CROSS JOIN unnest(texts, vectors) AS given (digest, v)
    WHERE host.host = own AND host.vector_fault IS NULL
      AND vector_dims(given.v::halfvec) = numerics.dimension
      AND EXISTS (SELECT FROM opdbus.content JOIN opdbus.object ON object.content = content.digest
                  WHERE content.text = given.digest AND object.host = own)
    ON CONFLICT DO NOTHING;
  GET DIAGNOSTICS taken = ROW_COUNT;
  RETURN taken;
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

REVOKE EXECUTE ON FUNCTION opdbus.own_seq(), opdbus.own_refusal(), opdbus.limit_staged(),
  opdbus.staged_bytes(integer, name), opdbus.count_new(integer), opdbus.refuse(integer, text)
  FROM PUBLIC;
GRANT EXECUTE ON FUNCTION opdbus.own_seq(), opdbus.own_refusal() TO opdbus_host;
