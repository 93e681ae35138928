-- What questions over all hosts need beside the tables: narrower lookups, and digests of states
-- without what differs between any two hosts.

-- A state without the identities of a host: hardware addresses, serial numbers, UUIDs, addresses
-- and times. States with one shape are alike; opdbus.fleet.questions.identities has the same rule.
CREATE FUNCTION opdbus.masked(state text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
  SELECT regexp_replace(regexp_replace(state,
    '"([^"]*[^a-z"])?(mac|mac_address|hwaddr|uuid|UUID|guid|serial|wwn|inode|machine_id|boot_id'
    '|invocation_id|fingerprint)": ("([^"\\]|\\.)*"|[0-9.]+)', '"": "*"', 'g'),
    '\m[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\M'
    '|\m[0-9a-f]{2}(:[0-9a-f]{2}){5}\M'
    '|(?<!ersion": "|[0-9.])(?!0\.0\.0\.0|127\.)[0-9]{1,3}(\.[0-9]{1,3}){3}(?![0-9.])(/[0-9]{1,2}\M)?'
    '|\m(fe80|fd[0-9a-f]{2}|2[0-9a-f]{3})(:[0-9a-f]{0,4}){2,7}(/[0-9]{1,3}\M)?'
    '|\m[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?(Z|[+-][0-9]{2}:?[0-9]{2})?',
    '*', 'g')
$$;

CREATE FUNCTION opdbus.shape(declared jsonb, observed jsonb) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
  SELECT md5(opdbus.masked(coalesce(observed, declared)::text))::uuid
$$;

ALTER TABLE opdbus.content
  ADD COLUMN shape uuid GENERATED ALWAYS AS (opdbus.shape(declared, observed)) STORED;
CREATE INDEX content_name ON opdbus.content (lower(name));

-- Names of fields as they are written, and words of objects' names: few, and only added to.
CREATE TABLE opdbus.field (name text PRIMARY KEY);
CREATE TABLE opdbus.name_word (word text PRIMARY KEY);
CREATE INDEX name_word_trigrams ON opdbus.name_word USING gin (word gin_trgm_ops);

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

-- The last transaction that changed a host's objects or history: hosts that changed since a
-- snapshot are those of whose transaction it did not know.
ALTER TABLE opdbus.host ADD COLUMN changed xid8 NOT NULL DEFAULT pg_current_xact_id();

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

CREATE INDEX change_words ON opdbus.change USING gin (opdbus.words(sentence));

REVOKE EXECUTE ON FUNCTION opdbus.masked(text), opdbus.shape(jsonb, jsonb), opdbus.note_names(),
  opdbus.note_changed_hosts() FROM PUBLIC;
