-- Columns and indexes that keep questions over very many hosts from reading all rows.

-- A name without what may number or identify an object; opdbus.fleet.questions.identities has the
-- same rule.
CREATE FUNCTION opdbus.name_pattern(name text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
  SELECT regexp_replace(opdbus.masked(name), '\m[0-9a-f]{12,}\M|[0-9]+', '*', 'g')
$$;
ALTER TABLE opdbus.content
  ADD COLUMN name_pattern text GENERATED ALWAYS AS (opdbus.name_pattern(name)) STORED;

-- First listings are counted only: each host has one row of each object that it had.
CREATE INDEX change_first ON opdbus.change (at, host) INCLUDE (plugin, kind) WHERE cause = 'first';

-- To compute words takes long: the index of words is read instead wherever there is one.
ALTER FUNCTION opdbus.words(text) COST 5000;

REVOKE EXECUTE ON FUNCTION opdbus.name_pattern(text) FROM PUBLIC;
