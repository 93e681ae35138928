-- Limits of what a host has: its objects, and what lies staged. A refusal says which limit it was.

ALTER TABLE opdbus.fleet
  ADD COLUMN most_objects integer NOT NULL DEFAULT 200000 CHECK (most_objects > 0);

ALTER TABLE opdbus.host
  -- in place of the fleet's; null: the fleet's
  ADD COLUMN most_objects integer CHECK (most_objects > 0),
  -- why its batches are refused, if `refused_at` is set
  ADD COLUMN refusal text;

-- These are in PL/pgSQL, which keeps plans for a session.
CREATE FUNCTION opdbus.limit_staged() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  own integer := opdbus.own_host();
  staged bigint;
BEGIN
  -- a batch of the sender has 12 MiB of states at most, and as much history
  IF TG_TABLE_NAME = 'staged_object' THEN
    staged := (SELECT sum(octet_length(body)) FROM opdbus.staged_object WHERE host = own);
  ELSE
    staged := (SELECT sum(octet_length(chained) + pg_column_size(details))
               FROM opdbus.staged_change WHERE host = own);
  END IF;
  IF staged > 67108864 THEN
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

-- Counts what a host sends; returns false, and counts nothing, if that is more than it may today.
CREATE OR REPLACE FUNCTION opdbus.count_sent(own integer) RETURNS boolean
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
  UPDATE opdbus.host SET sent_on = today,
    sent_bytes = staged + CASE WHEN sent_on = today THEN sent_bytes ELSE 0 END
    WHERE host = own AND staged + CASE WHEN sent_on = today THEN sent_bytes ELSE 0 END
      <= coalesce(daily_bytes, (SELECT fleet.daily_bytes FROM opdbus.fleet));
  RETURN FOUND;
END $$;

-- As before; counts the host's objects by what changes.
CREATE OR REPLACE FUNCTION opdbus.apply_batch(given_epoch integer, remaining bigint)
RETURNS integer[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  own integer := opdbus.require_own_host();
  known opdbus.host;
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
  IF NOT opdbus.count_sent(own) THEN
    PERFORM opdbus.refuse(own, format('it has sent as much today as it may, %s MiB', coalesce(
      known.daily_bytes, (SELECT daily_bytes FROM opdbus.fleet)) >> 20));
    RETURN NULL;
  END IF;
  PERFORM opdbus.apply_changes(own);
  lacking := opdbus.apply_objects(own, known.numerics);
  UPDATE opdbus.host SET seen_at = now(), backlog = remaining, objects = objects + more,
    refused_at = NULL, refusal = NULL,
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

REVOKE EXECUTE ON FUNCTION opdbus.limit_staged(),
  opdbus.count_new(integer), opdbus.refuse(integer, text), opdbus.own_refusal() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION opdbus.own_refusal() TO opdbus_host;
