//! PyCapsules: how one library hands another a struct of `datafusion-ffi`.

use std::ffi::CStr;

use datafusion_ffi::proto::logical_extension_codec::FFI_LogicalExtensionCodec;
use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// A capsule of `value` under the name by which the wheel knows its type.
pub(crate) fn new<'py, T: Send + 'static>(
    py: Python<'py>,
    value: T,
    name: &'static CStr,
) -> PyResult<Bound<'py, PyCapsule>> {
    PyCapsule::new_with_value(py, value, name)
}

/// The logical codec of a session of the wheel, or the one in a capsule.
///
/// # Errors
/// When `session` is neither, or the wheel is built on another major version of DataFusion.
pub(crate) fn logical_codec(session: &Bound<'_, PyAny>) -> PyResult<FFI_LogicalExtensionCodec> {
    let capsule = if session.is_instance_of::<PyCapsule>() {
        session.clone()
    } else {
        session.call_method0("__datafusion_logical_extension_codec__")?
    };
    let capsule = capsule.cast::<PyCapsule>()?;
    let pointer = capsule
        .pointer_checked(Some(c"datafusion_logical_extension_codec"))?
        .cast::<FFI_LogicalExtensionCodec>();
    // SAFETY: a capsule of this name holds this struct (datafusion-ffi's convention), and lives
    // while it is borrowed here.
    let codec = unsafe { pointer.as_ref() };
    // SAFETY: the function takes nothing and reads a constant.
    let theirs = unsafe { (codec.version)() };
    if theirs != datafusion_ffi::version() {
        return Err(PyImportError::new_err(format!(
            "this flashmesh needs the package datafusion {}; {theirs} is installed",
            datafusion_ffi::version()
        )));
    }
    Ok(codec.clone())
}
