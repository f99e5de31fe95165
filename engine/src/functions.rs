//! `CREATE FUNCTION` and `DROP FUNCTION`.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use datafusion::common::ScalarValue;
use datafusion::dataframe::DataFrame;
use datafusion::logical_expr::{CreateFunction, DropFunction, Expr};
use flashmesh_planner::relations::table_functions;
use flashmesh_planner::translate::program_type;
use flashmesh_storage::StorageError;
use flashmesh_storage::kernel::{Package, Returns, Signature};

use crate::Session;
use crate::blocking::blocking;
use crate::error::{Error, Result};

/// What the bytes of a package begin with when they stand in the statement themselves.
const DATA_URL: &str = "data:application/wasm;base64,";
/// The language of `CREATE FUNCTION`.
const LANGUAGE: &str = "hls";

impl Session {
    pub(crate) async fn create_function(&self, create: CreateFunction) -> Result<DataFrame> {
        let name = create.name.as_str();
        let language = create
            .params
            .language
            .as_ref()
            .map(|l| l.value.to_lowercase());
        if language.as_deref() != Some(LANGUAGE) {
            return Err(Error::usage(format!(
                "functions are written in language {LANGUAGE}: CREATE FUNCTION {name}() LANGUAGE {LANGUAGE} AS 'path.fmk'"
            )));
        }
        if create.temporary {
            return Err(Error::usage(
                "functions belong to the database; leave TEMPORARY out",
            ));
        }
        self.principal().check_create_function(name)?;
        self.check_free_name(name)?;
        let package = match &create.params.function_body {
            Some(Expr::Literal(ScalarValue::Utf8(Some(text)), _)) => {
                self.read_package(text).await?
            }
            _ => {
                return Err(Error::usage(format!(
                    "CREATE FUNCTION {name}: AS takes the path of a package, or '{DATA_URL}…'"
                )));
            }
        };
        let parsed = Package::parse(package.clone())?;
        if parsed.manifest.name != name {
            return Err(Error::usage(format!(
                "the package is of kernel '{0}'; write CREATE FUNCTION {0}",
                parsed.manifest.name
            )));
        }
        let Some(signature) = &parsed.manifest.signature else {
            return Err(Error::usage(format!(
                "kernel '{name}' has no SQL signature: it is for devices, not for SQL"
            )));
        };
        check_signature(name, &create, signature)?;
        let capability = self.catalog().authority().of_function(name);
        let changes = self.changes();
        let principal = Arc::clone(self.shared_principal());
        let or_replace = create.or_replace;
        // Compiling takes a moment.
        blocking(move || {
            let may_use = |other: &str| principal.may_use(other);
            changes.create_function(&capability, package, principal.admin, or_replace, may_use)
        })
        .await?;
        self.update_functions();
        self.nothing()
    }

    pub(crate) async fn drop_function(&self, drop: &DropFunction) -> Result<DataFrame> {
        let name = drop.name.clone();
        let database = Arc::clone(self.engine().database());
        let is_there = self.principal().may_use(&name) && database.function(&name).is_ok();
        if drop.if_exists && !is_there {
            return self.nothing();
        }
        self.principal().check_create_function(&name)?;
        let capability = self.catalog().authority().of_function(&name);
        let changes = self.changes();
        let is_admin = self.principal().admin;
        blocking(move || changes.drop_function(&capability, &name, is_admin)).await?;
        self.update_functions();
        self.nothing()
    }

    /// Refuses the name of a function that is there in every database.
    fn check_free_name(&self, name: &str) -> Result<()> {
        let state = self.context().state();
        let own = self.engine().database().function(name).is_ok();
        let built_in = state.scalar_functions().contains_key(name)
            || state.aggregate_functions().contains_key(name)
            || state.window_functions().contains_key(name)
            || state.table_functions().contains_key(name)
            || table_functions().any(|(known, _)| known == name);
        match built_in && !own {
            true => Err(Error::usage(format!(
                "'{name}' is a function of every database; choose another name"
            ))),
            false => Ok(()),
        }
    }

    async fn read_package(&self, text: &str) -> Result<Bytes> {
        if let Some(encoded) = text.strip_prefix(DATA_URL) {
            return BASE64
                .decode(encoded.trim())
                .map(Bytes::from)
                .map_err(|e| Error::usage(format!("the package is no base64: {e}")));
        }
        self.principal().check_admin("read files of the server")?;
        let path = text.to_string();
        blocking(move || {
            std::fs::read(&path)
                .map(Bytes::from)
                .map_err(|e| StorageError::io(format!("reading the package {path}"), e))
        })
        .await
    }
}

/// Compares what the statement says of the function with what its package says. Without
/// parameters and result, the package's hold.
fn check_signature(name: &str, create: &CreateFunction, signature: &Signature) -> Result<()> {
    let differs = || {
        Err(Error::usage(format!(
            "the package says {name}{signature}; write that, or just CREATE FUNCTION {name}() LANGUAGE {LANGUAGE} AS …"
        )))
    };
    let args = create.args.as_deref().unwrap_or_default();
    if args.is_empty() && create.return_type.is_none() {
        return Ok(());
    }
    let same_types = args.len() == signature.parameters.len()
        && args
            .iter()
            .zip(&signature.parameters)
            .all(|(arg, parameter)| program_type(&arg.data_type) == parameter.data_type);
    let same_result = match (&create.return_type, &signature.returns) {
        (Some(result), Returns::Scalar(data_type)) => program_type(result) == *data_type,
        (None, _) => true,
        _ => false,
    };
    match same_types && same_result {
        true => Ok(()),
        false => differs(),
    }
}
