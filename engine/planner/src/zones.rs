//! `timezone('Europe/Berlin', moment)`, which is `moment AT TIME ZONE 'Europe/Berlin'`.

use std::sync::Arc;

use arrow::array::timezone::Tz;
use arrow::datatypes::{DataType, Field, FieldRef, TimeUnit};
use datafusion::common::{Result, ScalarValue, internal_err, plan_err};
use datafusion::functions::datetime::to_local_time;
use datafusion::logical_expr::{
    ColumnarValue, DocSection, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl,
    Signature, Volatility,
};

use crate::moments::may_be_moment;

/// Of a timestamp with a time zone, what clocks show in another zone then; of one without, the moment at which
/// clocks show that there. DataFusion's `AT TIME ZONE` is a moment of that zone in both cases.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Timezone {
    signature: Signature,
    documentation: Documentation,
}

impl Timezone {
    pub fn new() -> Self {
        let says = "what clocks show in a time zone at a moment (a timestamp with time zone); or the moment at which \
                    they show a timestamp; `moment AT TIME ZONE zone` is the same";
        let call = "timezone(zone, moment)";
        Self {
            signature: Signature::user_defined(Volatility::Immutable),
            documentation: Documentation::builder(DocSection::default(), says, call).build(),
        }
    }
}

impl ScalarUDFImpl for Timezone {
    fn name(&self) -> &str {
        "timezone"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            [zone, moment] if zone.is_string() && (moment.is_string() || may_be_moment(moment)) => {
                let moment = match moment {
                    zoned @ DataType::Timestamp(..) => zoned.clone(),
                    _ => DataType::Timestamp(TimeUnit::Nanosecond, None),
                };
                Ok(vec![DataType::Utf8, moment])
            }
            _ => plan_err!(
                "timezone takes the name of a time zone and a timestamp: timezone('Europe/Berlin', t)"
            ),
        }
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        internal_err!("the type depends on the zone")
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let zone = args.scalar_arguments.first().copied().flatten();
        let Some(zone) = zone.and_then(|zone| zone.try_as_str().flatten()) else {
            return plan_err!("AT TIME ZONE takes the name of a time zone as a constant");
        };
        if zone.parse::<Tz>().is_err() {
            return plan_err!(
                "there is no time zone '{zone}'; write one such as 'Europe/Berlin' or '+02:00'"
            );
        }
        let to = match args.arg_fields[1].data_type() {
            DataType::Timestamp(unit, Some(_)) => DataType::Timestamp(*unit, None),
            DataType::Timestamp(unit, None) => DataType::Timestamp(*unit, Some(zone.into())),
            other => return plan_err!("timezone takes a timestamp, not {other}"),
        };
        Ok(Arc::new(Field::new(self.name(), to, true)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [zone, moment] = args.args.as_slice() else {
            return internal_err!("timezone takes two arguments");
        };
        let zone = match zone {
            ColumnarValue::Scalar(zone) => zone.try_as_str().flatten().map(str::to_owned),
            ColumnarValue::Array(zones) => {
                let zone = ScalarValue::try_from_array(zones, 0)?;
                zone.try_as_str().flatten().map(str::to_owned)
            }
        };
        let DataType::Timestamp(unit, of) = moment.data_type() else {
            return internal_err!("timezone takes a timestamp");
        };
        let there = DataType::Timestamp(unit, zone.map(Into::into));
        let moment = moment.cast_to(&there, None)?;
        if of.is_none() {
            return Ok(moment);
        }
        to_local_time().invoke_with_args(ScalarFunctionArgs {
            args: vec![moment],
            arg_fields: vec![Arc::new(Field::new("moment", there, true))],
            ..args
        })
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}
