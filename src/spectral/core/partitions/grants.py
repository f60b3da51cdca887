"""Who may do what with a table, granted for another one as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from spectral.core.database import Database

# The statements are written by the server, which quotes every name in them.
_GRANTS: Final = """
    with entry as (
        select acl.*, '' as columns
        from pg_class as class
        cross join lateral aclexplode(class.relacl) as acl
        where class.oid = %(source)s::regclass and acl.grantee <> class.relowner
        union all
        select acl.*, format(' (%%I)', attribute.attname)
        from pg_attribute as attribute
        cross join lateral aclexplode(attribute.attacl) as acl
        where attribute.attrelid = %(source)s::regclass and attribute.attnum > 0 and not attribute.attisdropped
    )
    select format(
        'grant %%s%%s on %%s to %%s%%s', entry.privilege_type, entry.columns, %(target)s::regclass,
        case entry.grantee when 0 then 'public' else entry.grantee::regrole::text end,
        case when entry.is_grantable then ' with grant option' else '' end
    )
    from entry
"""


async def copy_grants(database: Database, source: str, target: str) -> None:
    """Grant for the target what is granted for the source, to the same roles, column by column too.

    Raises:
        OperationError: the login may not.
    """
    async with database.transaction():
        for (statement,) in await database.tuples(_GRANTS, {"source": source, "target": target}):
            await database.connection.execute(str(statement).encode())
