-- Ids of one millisecond are in the order in which they were made, as those of the Python producers are: until now the
-- order of what was published within a millisecond was left to chance, and lists by id showed it so.

-- Time-ordered ids for producers that do not bring their own: neighbours in time are neighbours in the index.
-- The first 48 bits are the milliseconds, the version nibble is 7, the next 12 bits count the 4096ths of the millisecond
-- (as far as the clock knows them), the rest is random (RFC 9562).
create or replace function core.uuid7() returns uuid
    language sql volatile parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select encode(
        int8send(
            ((clock.microseconds / 1000) << 16)
            | (7 << 12)
            | ((clock.microseconds % 1000) * 4096 / 1000)
        ) || substr(uuid_send(gen_random_uuid()), 9), 'hex'
    )::uuid
    from (
        select (extract(epoch from clock_timestamp()) * 1000000)::bigint as microseconds
    ) as clock
$$;
