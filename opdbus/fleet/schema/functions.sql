-- What the roles may do: hosts write through functions, and only rows of their own.

-- The host of the session's role; null if the role is no host.
CREATE FUNCTION opdbus.own_host() RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT host FROM opdbus.host WHERE role = session_user
$$;

CREATE FUNCTION opdbus.require_own_host() RETURNS integer
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  own integer := opdbus.own_host();
BEGIN
  IF own IS NULL THEN
    RAISE EXCEPTION 'the role % is no host of this fleet', session_user
      USING ERRCODE = 'insufficient_privilege', HINT = 'add it with `op-dbus fleet add`';
  END IF;
  RETURN own;
END $$;

-- Names of fields and FIELD=VALUE, in lower case; values of at most 100 characters.
CREATE FUNCTION opdbus.terms(state jsonb) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(array_agg(DISTINCT term), '{}') FROM (
    SELECT jsonb_path_query(state, '$.** ? (@.type() == "object").keyvalue()') AS pair
  ) AS pairs
  -- no index has room for very long names
  CROSS JOIN LATERAL (
    SELECT lower(pair->>'key') AS term
    UNION ALL
    SELECT lower(pair->>'key') || '=' || lower(value #>> '{}')
    -- a list has the values of all its members, as conditions read it
    FROM jsonb_path_query(pair->'value', CASE jsonb_typeof(pair->'value')
      WHEN 'array' THEN '$.**'::jsonpath ELSE '$'::jsonpath END) AS value
    WHERE jsonb_typeof(value) IN ('string', 'number', 'boolean')
      AND length(value #>> '{}') <= 100
  ) AS terms
  WHERE length(pair->>'key') <= 200
$$;

-- The numerics' number; adds the table of its vectors.
CREATE FUNCTION opdbus.add_numerics(given_name text, given_level text, given_dimension integer)
RETURNS smallint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
  entry opdbus.numerics;
BEGIN
  SELECT * INTO entry FROM opdbus.numerics WHERE name = given_name;
  IF NOT FOUND THEN
    LOCK TABLE opdbus.numerics IN SHARE ROW EXCLUSIVE MODE;
    SELECT * INTO entry FROM opdbus.numerics WHERE name = given_name;
  END IF;
  IF NOT FOUND THEN
    IF (SELECT count(*) >= 16 FROM opdbus.numerics) THEN
      RAISE EXCEPTION 'this fleet has vectors of 16 models already'
        USING HINT = 'remove one with `op-dbus fleet level`';
    END IF;
    INSERT INTO opdbus.numerics (name, level, dimension)
      VALUES (given_name, given_level, given_dimension) RETURNING * INTO entry;
    EXECUTE format('CREATE TABLE opdbus.vector_%s PARTITION OF opdbus.vector FOR VALUES IN (%s)',
                   entry.numerics, entry.numerics);
    EXECUTE format('ALTER TABLE opdbus.vector_%s ADD CHECK (vector_dims(v) = %s)',
                   entry.numerics, entry.dimension);
    EXECUTE format('CREATE INDEX vector_%s_bits ON opdbus.vector_%s USING hnsw'
                   ' ((binary_quantize(v)::bit(%s)) bit_hamming_ops)',
                   entry.numerics, entry.numerics, entry.dimension);
  ELSIF entry.dimension <> given_dimension THEN
    RAISE EXCEPTION 'vectors of % have % dimensions, not %',
      given_level, entry.dimension, given_dimension;
  END IF;
  RETURN entry.numerics;
END $$;

-- How a host's history continues: `after_seq` is the row after which to send.
CREATE TYPE opdbus.sync AS (host integer, epoch integer, after_seq bigint, refusal text);

-- The row of history up to which the server has a host's changes.
CREATE FUNCTION opdbus.stored_history() RETURNS TABLE (seq bigint, hash bytea)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT seq, hash FROM opdbus.host WHERE host = opdbus.require_own_host()
$$;

CREATE FUNCTION opdbus.begin_epoch(own integer, follows bigint, why text, finding text)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE opdbus.host SET
    epoch = epoch + 1, seq = follows,
    -- unknown, but for the beginning of all history
    hash = CASE WHEN follows = 0 THEN decode(repeat('00', 32), 'hex') ELSE '\x' END,
    conflict = coalesce(conflict, finding),
    conflict_at = CASE WHEN finding IS NULL THEN conflict_at ELSE coalesce(conflict_at, now()) END
  WHERE host = own;
  INSERT INTO opdbus.epoch (host, epoch, first_seq, reason)
    SELECT host, epoch, follows + 1, why FROM opdbus.host WHERE host = own;
END $$;

-- Begins a synchronization. `first_kept` and `last` are the first and the last row of history that
-- the host has; `hash_at_seq` is the hash of its row `stored_history().seq`, null without that row.
CREATE FUNCTION opdbus.begin_sync(
  given_machine text, given_version text, given_level text, given_numerics text,
  given_dimension integer, given_observers jsonb, first_kept bigint, last bigint,
  hash_at_seq bytea
) RETURNS opdbus.sync
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  own integer := opdbus.require_own_host();
  known opdbus.host;
  number smallint;
BEGIN
  SELECT * INTO known FROM opdbus.host WHERE host = own FOR UPDATE;
  IF coalesce(given_machine, '') = '' THEN
    RAISE EXCEPTION 'the host does not name its machine' USING ERRCODE = 'data_exception';
  END IF;
  IF known.machine <> given_machine THEN
    UPDATE opdbus.host SET conflict_at = coalesce(conflict_at, now()), conflict = coalesce(conflict,
      'another machine came with this host''s credentials: ' || left(given_machine, 100))
      WHERE host = own;
    RETURN (own, known.epoch, known.seq, 'these credentials belong to another machine, '
      || known.machine || ', and this is ' || left(given_machine, 100))::opdbus.sync;
  END IF;
  -- models are added by workers: a host cannot make tables, or take a model's name
  SELECT numerics INTO number FROM opdbus.numerics
    WHERE name = given_numerics AND dimension = given_dimension;
  UPDATE opdbus.host SET machine = given_machine, version = left(given_version, 100),
    level = left(given_level, 40), numerics = number, observers = given_observers, seen_at = now()
    WHERE host = own;
  IF known.epoch = 0 THEN
    PERFORM opdbus.begin_epoch(own, greatest(first_kept, 1) - 1, 'first', NULL);
  ELSIF last < known.seq THEN
    PERFORM opdbus.begin_epoch(own, greatest(first_kept, 1) - 1, 'rewritten', format(
      'history ends at row %s, and row %s was stored before', last, known.seq));
  ELSIF hash_at_seq IS NOT NULL AND known.hash NOT IN (hash_at_seq, '\x') THEN
    PERFORM opdbus.begin_epoch(own, greatest(first_kept, 1) - 1, 'rewritten', format(
      'row %s of history is not the one that was stored before', known.seq));
  ELSIF hash_at_seq IS NULL AND known.seq BETWEEN greatest(first_kept, 1) AND last
      AND known.hash <> '\x' THEN
    PERFORM opdbus.begin_epoch(own, first_kept - 1, 'rewritten', format(
      'the host has row %s of history, and does not show its hash', known.seq));
  ELSIF hash_at_seq IS NULL AND first_kept > known.seq + 1 THEN
    PERFORM opdbus.begin_epoch(own, first_kept - 1, 'gap', NULL);
  END IF;
  SELECT * INTO known FROM opdbus.host WHERE host = own;
  RETURN (own, known.epoch, known.seq, NULL)::opdbus.sync;
END $$;

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

-- Stores the staged changes and objects of a host; returns the places of staged objects whose
-- texts have no vector of the host's numerics yet; null, with nothing stored, for a host over a limit.
-- The number of its objects and what it sent today are kept by what changes.
CREATE FUNCTION opdbus.apply_batch(given_epoch integer, remaining bigint)
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

-- Whether a value is null or a list of lists of `size` texts each.
CREATE FUNCTION opdbus.are_rows(value jsonb, size integer) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
  SELECT value IS NULL OR jsonb_typeof(value) = 'array' AND NOT coalesce(
    jsonb_path_exists(value, 'strict $[*] ? (@.type() != "array")')
    OR jsonb_path_exists(value, 'strict $[*] ? (@.size() != $size)',
                         jsonb_build_object('size', size))
    OR jsonb_path_exists(value, 'strict $[*][*] ? (@.type() != "string")'), true)
$$;

-- The first epoch of the history that the present one continues: gaps lose rows and rewrite none.
CREATE FUNCTION opdbus.first_epoch(own integer) RETURNS integer
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(max(epoch), 0) FROM opdbus.epoch WHERE host = own AND reason = 'rewritten'
$$;

CREATE FUNCTION opdbus.apply_changes(own integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  known opdbus.host;
  staged opdbus.staged_change;
  hashed jsonb;
  reached bigint;
  before bytea;
BEGIN
  SELECT * INTO known FROM opdbus.host WHERE host = own;
  reached := known.seq;
  before := known.hash;
  FOR staged IN SELECT * FROM opdbus.staged_change WHERE host = own ORDER BY seq LOOP
    CONTINUE WHEN staged.seq <= reached;  -- sent before
    hashed := staged.chained::jsonb;
    IF staged.seq <> reached + 1 OR (hashed->>0)::bigint <> staged.seq THEN
      RAISE EXCEPTION 'row % of history follows row %', staged.seq, reached
        USING ERRCODE = 'data_exception';
    END IF;
    IF staged.seq = known.seq + 1 AND before <> '\x' AND staged.hash <> sha256(
        '\x00'::bytea || before || convert_to(staged.chained, 'UTF8')) THEN
      PERFORM opdbus.begin_epoch(own, known.seq, 'rewritten', format(
        'row %s of history does not follow the row that was stored before', staged.seq));
      SELECT * INTO known FROM opdbus.host WHERE host = own;
      before := known.hash;
    END IF;
    IF (hashed->>1)::bigint NOT BETWEEN 0 AND 4102444800000000 THEN
      RAISE EXCEPTION 'row % of history is not of the years 1970 to 2099', staged.seq
        USING ERRCODE = 'data_exception';
    END IF;
    IF NOT opdbus.are_rows(nullif(staged.details->'fields', 'null'), 3) THEN
      RAISE EXCEPTION 'the fields of row % of history are no lists of three texts', staged.seq
        USING ERRCODE = 'data_exception';
    END IF;
    IF before <> '\x' AND staged.hash <> sha256('\x00'::bytea || before
                                                || convert_to(staged.chained, 'UTF8')) THEN
      RAISE EXCEPTION 'the hash of row % of history does not follow from row %', staged.seq, reached
        USING ERRCODE = 'data_exception';
    END IF;
    INSERT INTO opdbus.change VALUES (
      own, known.epoch, staged.seq, (hashed->>1)::bigint, hashed->>2, hashed->>3, hashed->>4,
      hashed->>5, hashed->>6, hashed->>7, hashed->>8, (hashed->>9)::bigint, hashed->>10,
      staged.hash, nullif(staged.details->'fields', 'null'), coalesce(staged.details->>'sentence', ''),
      coalesce(staged.details->>'severity', ''), coalesce(staged.details->'known', '{}'));
    PERFORM opdbus.erase_changes(own, known.epoch, staged.seq, hashed,
      nullif(staged.details->'fields', 'null'));
    reached := staged.seq;
    before := staged.hash;
  END LOOP;
  DELETE FROM opdbus.staged_change WHERE host = own;
  IF reached > known.seq THEN
    UPDATE opdbus.host SET seq = reached, hash = before WHERE host = own;
    INSERT INTO opdbus.checkpoint (host, epoch, seq, hash)
      SELECT own, known.epoch, reached, before
      WHERE NOT EXISTS (SELECT FROM opdbus.checkpoint WHERE host = own AND epoch = known.epoch
                        AND at > now() - interval '10 minutes');
  END IF;
END $$;

-- Erases what a host erased in its own history: by a row `forgot`, or by a redacted row `gone`.
CREATE FUNCTION opdbus.erase_changes(
  own integer, given_epoch integer, given_seq bigint, hashed jsonb, given_fields jsonb
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF hashed->>7 = 'forgot' THEN
    UPDATE opdbus.change SET fields = NULL, sentence = '', known = '{}'
      FROM jsonb_array_elements(given_fields) AS field,
        jsonb_array_elements((field->>2)::jsonb) AS rows
      WHERE host = own AND epoch >= opdbus.first_epoch(own) AND field->>0 = 'rows'
        AND seq BETWEEN (rows->>0)::bigint AND least((rows->>1)::bigint, given_seq - 1)
        AND fields IS NOT NULL;
  ELSIF hashed->>7 = 'gone' AND given_fields IS NULL THEN
    UPDATE opdbus.change SET fields = NULL, sentence = '', known = '{}'
      WHERE host = own AND epoch >= opdbus.first_epoch(own) AND seq < given_seq AND source = hashed->>3
        AND plugin = hashed->>4 AND kind = hashed->>5 AND name = hashed->>6
        -- an earlier row `gone` has no values, and keeps its sentence, as on the host
        AND fields IS NOT NULL;
  END IF;
END $$;

CREATE FUNCTION opdbus.apply_objects(own integer, model smallint) RETURNS integer[]
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

-- Offers vectors of the host's numerics, of texts that it has. A host that changed its model has no
-- offers of the one before, which would add up.
CREATE FUNCTION opdbus.offer_vectors(texts bytea[], vectors text[]) RETURNS integer
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

-- The digests of the host's own stored objects, and their sources.
CREATE FUNCTION opdbus.own_digests()
RETURNS TABLE (plugin text, kind text, name text, digest bytea, source text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT object.plugin, object.kind, object.name, object.content, content.source
  FROM opdbus.object JOIN opdbus.content ON content.digest = object.content
  WHERE host = opdbus.require_own_host()
$$;

-- Replaces the host's drift; `rows` has (plugin, kind, name, class, severity, since, fields) each.
CREATE FUNCTION opdbus.put_drift(rows jsonb) RETURNS void
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

-- Notes that all digests were compared and that those which differed have been sent.
CREATE FUNCTION opdbus.end_comparison() RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  UPDATE opdbus.host SET compared_at = now(), current_at = now(), seen_at = now()
  WHERE host = opdbus.require_own_host()
$$;

-- Says that the host is there and has nothing new.
CREATE FUNCTION opdbus.keep_alive(given_observers jsonb) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  UPDATE opdbus.host SET seen_at = now(), current_at = now(), backlog = 0,
    observers = given_observers
  WHERE host = opdbus.require_own_host()
$$;

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

CREATE FUNCTION opdbus.note_names() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  -- sorted, so that batches of two hosts cannot deadlock
  INSERT INTO opdbus.field
    SELECT DISTINCT pair->>'key' AS name
    FROM added, jsonb_path_query(jsonb_build_array(declared, observed),
                                 '$.** ? (@.type() == "object").keyvalue()') AS pair
    WHERE length(pair->>'key') <= 200
      AND NOT EXISTS (SELECT FROM opdbus.field AS known WHERE known.name = pair->>'key')
    ORDER BY name ON CONFLICT DO NOTHING;
  INSERT INTO opdbus.name_word
    SELECT DISTINCT word FROM added, regexp_split_to_table(lower(name), '[^a-z]+') AS words (word)
    WHERE length(word) BETWEEN 4 AND 40
      AND NOT EXISTS (SELECT FROM opdbus.name_word AS known WHERE known.word = words.word)
    ORDER BY word ON CONFLICT DO NOTHING;
  RETURN NULL;
END $$;
CREATE TRIGGER note_names AFTER INSERT ON opdbus.content
  REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION opdbus.note_names();

CREATE FUNCTION opdbus.note_changed_hosts() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE opdbus.host SET changed = pg_current_xact_id()
    WHERE host IN (SELECT host FROM moved) AND changed <> pg_current_xact_id();
  RETURN NULL;
END $$;
CREATE TRIGGER note_added AFTER INSERT ON opdbus.object REFERENCING NEW TABLE AS moved
  FOR EACH STATEMENT EXECUTE FUNCTION opdbus.note_changed_hosts();
CREATE TRIGGER note_updated AFTER UPDATE ON opdbus.object REFERENCING NEW TABLE AS moved
  FOR EACH STATEMENT EXECUTE FUNCTION opdbus.note_changed_hosts();
CREATE TRIGGER note_removed AFTER DELETE ON opdbus.object REFERENCING OLD TABLE AS moved
  FOR EACH STATEMENT EXECUTE FUNCTION opdbus.note_changed_hosts();
CREATE TRIGGER note_history AFTER INSERT ON opdbus.change REFERENCING NEW TABLE AS moved
  FOR EACH STATEMENT EXECUTE FUNCTION opdbus.note_changed_hosts();

CREATE FUNCTION opdbus.own_seq() RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT seq FROM opdbus.host WHERE role = session_user
$$;

ALTER TABLE opdbus.staged_object ENABLE ROW LEVEL SECURITY;
ALTER TABLE opdbus.staged_change ENABLE ROW LEVEL SECURITY;
-- The functions stand in subqueries, so that each is called once for a statement.
CREATE POLICY own ON opdbus.staged_object TO opdbus_host
  USING (host = (SELECT opdbus.own_host()));
CREATE POLICY own ON opdbus.staged_change TO opdbus_host
  USING (host = (SELECT opdbus.own_host()))
  WITH CHECK (host = (SELECT opdbus.own_host())
    AND seq - (SELECT opdbus.own_seq()) BETWEEN -1000 AND 1000);

REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA opdbus FROM PUBLIC;
GRANT INSERT, DELETE ON opdbus.staged_object, opdbus.staged_change TO opdbus_host;
GRANT SELECT (host) ON opdbus.staged_object, opdbus.staged_change TO opdbus_host;
GRANT EXECUTE ON FUNCTION
  opdbus.own_host(), opdbus.own_seq(), opdbus.own_refusal(), opdbus.stored_history(),
  opdbus.begin_sync(text, text, text, text, integer, jsonb, bigint, bigint, bytea),
  opdbus.apply_batch(integer, bigint), opdbus.offer_vectors(bytea[], text[]),
  opdbus.own_digests(), opdbus.put_drift(jsonb), opdbus.end_comparison(),
  opdbus.keep_alive(jsonb) TO opdbus_host;

GRANT SELECT ON ALL TABLES IN SCHEMA opdbus TO opdbus_reader, opdbus_worker;
GRANT EXECUTE ON FUNCTION opdbus.words(text), opdbus.terms(jsonb) TO opdbus_reader, opdbus_worker;
GRANT EXECUTE ON FUNCTION opdbus.add_numerics(text, text, integer), opdbus.drop_numerics(smallint)
  TO opdbus_worker;
GRANT INSERT, UPDATE, DELETE ON opdbus.vector, opdbus.offered_vector, opdbus.embedding_task
  TO opdbus_worker;
GRANT DELETE ON opdbus.content, opdbus.text, opdbus.change, opdbus.checkpoint TO opdbus_worker;
GRANT INSERT, UPDATE ON opdbus.examination TO opdbus_worker;
GRANT UPDATE (pruned_seq, pruned_hash) ON opdbus.epoch TO opdbus_worker;
GRANT UPDATE (wanted, serving) ON opdbus.fleet TO opdbus_worker;
GRANT UPDATE (vector_fault, vector_fault_at) ON opdbus.host TO opdbus_worker;
ALTER DEFAULT PRIVILEGES IN SCHEMA opdbus GRANT SELECT ON TABLES TO opdbus_reader, opdbus_worker;
