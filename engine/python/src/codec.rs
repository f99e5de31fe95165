//! What is ours in the bytes of a plan, or known to the wheel alone: a number, for an object that
//! waits in [`Link`].

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::common::{Result, TableReference, exec_err, not_impl_err};
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{AggregateUDF, Extension, LogicalPlan, ScalarUDF, WindowUDF};
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::logical_plan::LogicalExtensionCodec;
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};

use crate::exec::EmbeddedExec;
use crate::link::{Link, Parcel};

/// For logical plans. It takes every table, also those of the wheel, so that DataFrames over files
/// and memory can be joined with ours; and every function that our session does not have.
#[derive(Debug)]
pub(crate) struct LogicalCodec {
    pub(crate) link: Arc<Link>,
}

impl LogicalExtensionCodec for LogicalCodec {
    fn try_decode(&self, _: &[u8], _: &[LogicalPlan], _: &TaskContext) -> Result<Extension> {
        not_impl_err!("operators of other libraries")
    }

    fn try_encode(&self, node: &Extension, _: &mut Vec<u8>) -> Result<()> {
        not_impl_err!("the operator {}", node.node.name())
    }

    fn try_decode_table_provider(
        &self,
        buf: &[u8],
        table: &TableReference,
        _: SchemaRef,
        _: &TaskContext,
    ) -> Result<Arc<dyn TableProvider>> {
        match self.link.take(buf)? {
            Parcel::Table(table) => Ok(table),
            _ => exec_err!("'{table}' is no table"),
        }
    }

    fn try_encode_table_provider(
        &self,
        _: &TableReference,
        node: Arc<dyn TableProvider>,
        buf: &mut Vec<u8>,
    ) -> Result<()> {
        self.link.park(Parcel::Table(node), buf);
        Ok(())
    }

    fn try_decode_udf(&self, name: &str, buf: &[u8]) -> Result<Arc<ScalarUDF>> {
        match self.link.take(buf)? {
            Parcel::Scalar(function) => Ok(function),
            _ => exec_err!("'{name}' is no scalar function"),
        }
    }

    fn try_encode_udf(&self, node: &ScalarUDF, buf: &mut Vec<u8>) -> Result<()> {
        if self.link.functions()?.scalar(node).is_none() {
            self.link.park(Parcel::Scalar(Arc::new(node.clone())), buf);
        }
        Ok(())
    }

    fn try_decode_udaf(&self, name: &str, buf: &[u8]) -> Result<Arc<AggregateUDF>> {
        match self.link.take(buf)? {
            Parcel::Aggregate(function) => Ok(function),
            _ => exec_err!("'{name}' is no aggregate function"),
        }
    }

    fn try_encode_udaf(&self, node: &AggregateUDF, buf: &mut Vec<u8>) -> Result<()> {
        if self.link.functions()?.aggregate(node).is_none() {
            self.link
                .park(Parcel::Aggregate(Arc::new(node.clone())), buf);
        }
        Ok(())
    }

    fn try_decode_udwf(&self, name: &str, buf: &[u8]) -> Result<Arc<WindowUDF>> {
        match self.link.take(buf)? {
            Parcel::Window(function) => Ok(function),
            _ => exec_err!("'{name}' is no window function"),
        }
    }

    fn try_encode_udwf(&self, node: &WindowUDF, buf: &mut Vec<u8>) -> Result<()> {
        if self.link.functions()?.window(node).is_none() {
            self.link.park(Parcel::Window(Arc::new(node.clone())), buf);
        }
        Ok(())
    }
}

/// For the one node that [`super::planner`] gives the wheel.
#[derive(Debug)]
pub(crate) struct PhysicalCodec {
    pub(crate) link: Arc<Link>,
}

impl PhysicalExtensionCodec for PhysicalCodec {
    fn try_decode(
        &self,
        buf: &[u8],
        _: &[Arc<dyn ExecutionPlan>],
        _: &TaskContext,
        _: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match self.link.take(buf)? {
            Parcel::Plan(plan) => Ok(plan),
            _ => exec_err!("these bytes hold no plan of flashmesh"),
        }
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        buf: &mut Vec<u8>,
        _: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        if !node.is::<EmbeddedExec>() {
            return not_impl_err!("{} is no plan of flashmesh", node.name());
        }
        self.link.park(Parcel::Plan(node), buf);
        Ok(())
    }
}
