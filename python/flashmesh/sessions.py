"""Sessions of DataFusion's that the embedded database plans for."""

from __future__ import annotations

from typing import Any

from datafusion import SessionConfig, SessionContext
from datafusion.extensions import SessionExtensionComponents

from . import _flashmesh
from .functions import DISTANCES

#: Name of the catalog, and of the schema that every database has.
CATALOG, SCHEMA = "flashmesh", "public"


def of(database: _flashmesh.Database) -> SessionContext:
    """A session whose DataFrames the database runs."""
    config = (
        SessionConfig()
        .with_default_catalog_and_schema(CATALOG, SCHEMA)
        .with_create_default_catalog_and_schema(False)
        .with_information_schema(True)
    )
    database.use_functions(SessionContext())
    session = SessionContext(config)
    session.register_catalog_provider(CATALOG, _Catalog(database))
    for distance in DISTANCES.values():
        session.register_udf(distance)
    # Functions in Python go over as what they are, not pickled: they keep their globals.
    extended = session.with_extensions(_Extension(database))
    return extended.with_python_udf_inlining(enabled=False)


class _Extension:
    """What makes a session of DataFusion's plan and run with us."""

    def __init__(self, database: _flashmesh.Database) -> None:
        self._database = database

    def __datafusion_session_components__(self, ctx: SessionContext) -> SessionExtensionComponents:
        return SessionExtensionComponents(
            logical_extension_codecs=(_LogicalCodec(self._database),),
            physical_extension_codecs=(_PhysicalCodec(self._database),),
        )

    def __datafusion_session_planner__(self, ctx: SessionContext, fallback: object) -> Any:
        return self._database.query_planner()


class _LogicalCodec:
    __datafusion_codec_id__ = "flashmesh"

    def __init__(self, database: _flashmesh.Database) -> None:
        self._database = database

    def __datafusion_logical_extension_codec__(self, session: object = None) -> Any:
        return self._database.logical_codec()


class _PhysicalCodec:
    __datafusion_codec_id__ = "flashmesh"

    def __init__(self, database: _flashmesh.Database) -> None:
        self._database = database

    def __datafusion_physical_extension_codec__(self, session: object = None) -> Any:
        return self._database.physical_codec()


class _Catalog:
    def __init__(self, database: _flashmesh.Database) -> None:
        self._database = database

    def __datafusion_catalog_provider__(self, session: object) -> Any:
        return self._database.catalog_provider(session)
