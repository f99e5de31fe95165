//! What things are called: the catalog and its schemas, and names in statements.

use datafusion::sql::planner::IdentNormalizer;
use datafusion::sql::sqlparser::ast;

/// Name of the catalog.
pub(crate) const CATALOG: &str = "flashmesh";
/// Name of the schema that every database has.
pub(crate) const DEFAULT_SCHEMA: &str = "public";
/// Name of the schema in which the process tells of itself.
pub(crate) const SYSTEM_SCHEMA: &str = "system";
/// The procedure that statements about users, roles and grants are.
pub(crate) const CHANGE_ACCOUNTS: &str = "change_accounts";

/// A name as statements that DataFusion plans have it.
pub(crate) fn name_of(ident: &ast::Ident) -> String {
    IdentNormalizer::default().normalize(ident.clone())
}
