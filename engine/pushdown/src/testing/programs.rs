//! Random well-typed Programs.

use arrow::array::RecordBatch;
use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, SchemaRef, TimeUnit};
use rand::RngExt;
use rand::seq::{IndexedRandom, SliceRandom};

use super::Generator;
use crate::types::{arithmetic_type, is_integer_like, is_widening_cast, physical, sum_type};
use crate::{
    Aggregate, AggregateFunction, ArithmeticOp, CompareOp, DatePart, Expr, InputColumn, Literal,
    Metric, Output, Program, QueryVector, RuntimeFilter, RuntimePredicate, Scalar, SortKey,
};

/// Levels of nesting below a filter's or output's root. With it, and with floats of at most 4
/// in size, no float arithmetic overflows.
const DEPTH: u32 = 3;

impl Generator {
    /// A Program over a table of this schema that [`verify()`](crate::verify()) accepts and that
    /// never fails at run time. Its constants are often values of `sample`, so that filters
    /// neither keep nor drop everything.
    pub fn program(&mut self, schema: &SchemaRef, sample: &RecordBatch) -> Program {
        let mut ordinals: Vec<usize> = (0..schema.fields().len()).collect();
        ordinals.shuffle(&mut self.rng);
        ordinals.truncate(self.rng.random_range(0..=ordinals.len().min(8)));
        let columns = ordinals
            .iter()
            .map(|ordinal| {
                let field = schema.field(*ordinal);
                InputColumn {
                    ordinal: *ordinal as u32,
                    name: field.name().clone(),
                    data_type: field.data_type().clone(),
                    nullable: field.is_nullable(),
                }
            })
            .collect::<Vec<_>>();
        let sample = sample
            .project(&ordinals)
            .expect("the sample has the schema");
        let mut programs = Programs {
            generator: self,
            columns: &columns,
            sample: &sample,
        };

        let conjuncts = programs.below(4);
        let filter = (0..conjuncts).map(|_| programs.condition(DEPTH)).collect();
        let output = match programs.below(3) {
            0 => programs.aggregates(),
            _ => match programs.nearest() {
                Some(nearest) if programs.below(3) == 0 => nearest,
                _ => programs.rows(),
            },
        };
        Program {
            columns,
            filter,
            output,
        }
    }

    /// A runtime filter for one of the Program's columns, whose values are given; `None` when
    /// there is no suitable column.
    pub fn runtime_filter(
        &mut self,
        program: &Program,
        input: &RecordBatch,
    ) -> Option<RuntimeFilter> {
        let mut programs = Programs {
            generator: self,
            columns: &program.columns,
            sample: input,
        };
        let (column, data_type) = programs.column(|data_type| physical(data_type).is_some())?;
        let mut value = || programs.constant(&data_type, false);
        let (one, other) = (value(), value());
        let few: Vec<Scalar> = (0..5).map(|_| value()).collect();
        let rng = &mut programs.generator.rng;
        let predicate = match (rng.random_range(0..3), &one) {
            (0, Scalar::Int(base)) if is_integer_like(&data_type) => RuntimePredicate::Bitmap {
                base: i64::try_from(*base)
                    .unwrap_or(0)
                    .saturating_sub(rng.random_range(0..200)),
                bits: (0..rng.random_range(1..8)).map(|_| rng.random()).collect(),
            },
            (1, _) => RuntimePredicate::Set(few),
            _ => RuntimePredicate::Range {
                min: Some(one).filter(|_| rng.random_bool(0.7)),
                max: Some(other).filter(|_| rng.random_bool(0.7)),
            },
        };
        Some(RuntimeFilter {
            column,
            predicate,
            keep_nulls: rng.random(),
        })
    }
}

/// Makes the parts of one Program.
struct Programs<'a> {
    generator: &'a mut Generator,
    columns: &'a [InputColumn],
    sample: &'a RecordBatch,
}

impl Programs<'_> {
    fn below(&mut self, end: u32) -> u32 {
        self.generator.rng.random_range(0..end)
    }

    fn flip(&mut self) -> bool {
        self.generator.rng.random()
    }

    /// A column whose type is wanted.
    fn column(&mut self, wanted: impl Fn(&DataType) -> bool) -> Option<(u32, DataType)> {
        let candidates: Vec<(u32, &InputColumn)> = (0..)
            .zip(self.columns)
            .filter(|(_, column)| wanted(&column.data_type))
            .collect();
        let (index, column) = candidates.choose(&mut self.generator.rng)?;
        Some((*index, column.data_type.clone()))
    }

    /// A constant, often one that the sample has.
    fn constant(&mut self, data_type: &DataType, nullable: bool) -> Scalar {
        if nullable && self.below(20) == 0 {
            return Scalar::Null;
        }
        if self.below(3) > 0
            && self.sample.num_rows() > 0
            && let Some((column, _)) = self.column(|other| other == data_type)
        {
            let row = self.generator.rng.random_range(0..self.sample.num_rows());
            let values = self.sample.column(column as usize);
            if let Some(value) = Scalar::from_array(values, row).filter(|value| !value.is_null()) {
                return value;
            }
        }
        self.generator.scalar(data_type)
    }

    /// A text, often one that the sample has.
    fn text_constant(&mut self) -> Option<String> {
        match self.constant(&DataType::Utf8View, false) {
            Scalar::Bytes(bytes) => String::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    fn literal(&mut self, data_type: &DataType) -> Expr {
        let value = self.constant(data_type, true);
        Expr::Literal(Literal {
            value,
            data_type: data_type.clone(),
        })
    }

    /// A metric and a column that it is for.
    fn vectors(&mut self) -> Option<(Metric, u32, DataType)> {
        let metrics = [Metric::Hamming, Metric::L2, Metric::Cosine, Metric::Dot];
        let metric = *metrics.choose(&mut self.generator.rng)?;
        let (column, data_type) = self.column(|other| metric.length_of(other).is_some())?;
        Some((metric, column, data_type))
    }

    /// A constant vector for a column that the metric is for.
    fn query(&mut self, metric: Metric, data_type: &DataType) -> QueryVector {
        match metric {
            Metric::Hamming => match self.constant(data_type, false) {
                Scalar::Bytes(bytes) => QueryVector::Bits(bytes),
                other => panic!("{other:?} is no vector of bits"),
            },
            _ => {
                let length = metric.length_of(data_type).unwrap_or(0);
                let rng = &mut self.generator.rng;
                let whole = rng.random_bool(0.5);
                let mut value = || match whole {
                    true => f32::from(rng.random_range(-5..=5_i8)) / 2.0,
                    false => rng.random_range(-4.0..=4.0),
                };
                QueryVector::Floats((0..length).map(|_| value()).collect())
            }
        }
    }

    /// A distance from one of the columns, if one is a vector.
    fn distance(&mut self) -> Option<(Expr, DataType)> {
        let (metric, column, data_type) = self.vectors()?;
        let query = self.query(metric, &data_type);
        let expr = Box::new(Expr::Column(column));
        let distance = Expr::Distance {
            metric,
            expr,
            query,
        };
        Some((distance, metric.data_type()))
    }

    /// A search for nearest rows, if one of the columns is a vector.
    fn nearest(&mut self) -> Option<Output> {
        let (metric, column, data_type) = self.vectors()?;
        let count = *[0, 1, 2, 9, 20].choose(&mut self.generator.rng)?;
        let k = *[0, 1, 3, 10, 1000].choose(&mut self.generator.rng)?;
        let queries = (0..count).map(|_| self.query(metric, &data_type)).collect();
        let Output::Rows { exprs, .. } = self.rows() else {
            return None;
        };
        Some(Output::Nearest {
            queries,
            metric,
            expr: Expr::Column(column),
            k,
            exprs,
        })
    }

    /// An expression of any type that can be computed with.
    fn value(&mut self, depth: u32) -> (Expr, DataType) {
        if self.below(12) == 0
            && let Some(distance) = self.distance()
        {
            return distance;
        }
        let (expr, data_type) = match self.column(|data_type| physical(data_type).is_some()) {
            Some((column, data_type)) if self.below(20) > 0 => (Expr::Column(column), data_type),
            _ => {
                let data_type = self.generator.data_type();
                (self.literal(&data_type), data_type)
            }
        };
        if depth == 0 || self.flip() {
            return (expr, data_type);
        }
        let (expr, data_type) = self.extended(expr, data_type, depth);
        if depth > 1 && self.flip() {
            self.extended(expr, data_type, depth - 1)
        } else {
            (expr, data_type)
        }
    }

    /// The expression with something done to it.
    fn extended(&mut self, expr: Expr, data_type: DataType, depth: u32) -> (Expr, DataType) {
        let boxed = Box::new(expr.clone());
        match self.below(6) {
            0 | 1 => match self.arithmetic(expr.clone(), &data_type, depth) {
                Some(extended) => extended,
                None => self.case(expr, data_type, depth),
            },
            2 => match self.cast_target(&data_type) {
                Some(to) => (
                    Expr::Cast {
                        expr: boxed,
                        data_type: to.clone(),
                    },
                    to,
                ),
                None => (expr, data_type),
            },
            3 => self.case(expr, data_type, depth),
            _ => match data_type {
                DataType::Date32 => {
                    let part = match self.below(3) {
                        0 => DatePart::Year,
                        1 => DatePart::Month,
                        _ => DatePart::Day,
                    };
                    (Expr::DatePart { part, expr: boxed }, DataType::Int32)
                }
                DataType::Utf8View if self.below(3) == 0 => {
                    let like = self.text_constant();
                    let needle = self.generator.needle(like.as_deref());
                    (
                        Expr::Position {
                            expr: boxed,
                            needle,
                        },
                        DataType::Int32,
                    )
                }
                DataType::Utf8View => {
                    let (start, length) = (1 + self.below(6), self.below(6));
                    (
                        Expr::Substring {
                            expr: boxed,
                            start,
                            length,
                        },
                        DataType::Utf8View,
                    )
                }
                other => (expr, other),
            },
        }
    }

    fn arithmetic(
        &mut self,
        left: Expr,
        left_type: &DataType,
        depth: u32,
    ) -> Option<(Expr, DataType)> {
        let op = match self.below(3) {
            0 => ArithmeticOp::Add,
            1 => ArithmeticOp::Subtract,
            _ => ArithmeticOp::Multiply,
        };
        let right_type = match left_type {
            DataType::Decimal128(_, _) => {
                let other =
                    self.column(|data_type| matches!(data_type, DataType::Decimal128(_, _)));
                match other {
                    Some((_, data_type)) if self.flip() => data_type,
                    _ => DataType::Decimal128(3, 2),
                }
            }
            other if other.is_floating() && self.generator.special_floats => return None,
            other => other.clone(),
        };
        let data_type = arithmetic_type(op, left_type, &right_type)?;
        // A decimal that lost digits to the greatest precision could overflow.
        if matches!(data_type, DataType::Decimal128(DECIMAL128_MAX_PRECISION, _)) {
            return None;
        }
        let right = self.value_of(&right_type, depth - 1);
        let (left, right) = (Box::new(left), Box::new(right));
        Some((
            Expr::Arithmetic {
                op,
                left,
                right,
                data_type: data_type.clone(),
            },
            data_type,
        ))
    }

    /// A type that the type can be widened to.
    fn cast_target(&mut self, from: &DataType) -> Option<DataType> {
        use DataType::*;
        let candidates = [
            Int8,
            Int16,
            Int32,
            Int64,
            UInt16,
            UInt32,
            UInt64,
            Float32,
            Float64,
            Date64,
            Timestamp(TimeUnit::Second, None),
            Timestamp(TimeUnit::Millisecond, None),
            Decimal128(20, 0),
            Decimal128(25, 4),
            Decimal128(30, 10),
        ];
        let overflowing = matches!(from, Timestamp(_, _));
        let suited: Vec<&DataType> = candidates
            .iter()
            .filter(|to| !overflowing && is_widening_cast(from, to))
            .collect();
        suited
            .choose(&mut self.generator.rng)
            .map(|to| (*to).clone())
    }

    fn case(&mut self, value: Expr, data_type: DataType, depth: u32) -> (Expr, DataType) {
        let mut branches = vec![(self.condition(depth - 1), value)];
        if self.flip() {
            branches.push((
                self.condition(depth - 1),
                self.value_of(&data_type, depth - 1),
            ));
        }
        let otherwise = self
            .flip()
            .then(|| Box::new(self.value_of(&data_type, depth - 1)));
        (
            Expr::Case {
                branches,
                otherwise,
                data_type: data_type.clone(),
            },
            data_type,
        )
    }

    /// An expression of this type.
    fn value_of(&mut self, data_type: &DataType, depth: u32) -> Expr {
        if *data_type == DataType::Boolean && depth > 0 && self.flip() {
            return self.condition(depth);
        }
        let column = self.column(|other| other == data_type);
        let leaf = match column {
            Some((column, _)) if self.flip() => Expr::Column(column),
            _ => self.literal(data_type),
        };
        match self.below(4) {
            0 if depth > 0 => self.case(leaf, data_type.clone(), depth).0,
            1 if depth > 0
                && arithmetic_type(ArithmeticOp::Add, data_type, data_type).as_ref()
                    == Some(data_type) =>
            {
                self.arithmetic(leaf.clone(), data_type, depth)
                    .map_or(leaf, |(expr, _)| expr)
            }
            2 => match self.column(|from| {
                is_widening_cast(from, data_type) && !matches!(data_type, DataType::Timestamp(_, _))
            }) {
                Some((column, _)) => Expr::Cast {
                    expr: Box::new(Expr::Column(column)),
                    data_type: data_type.clone(),
                },
                None => leaf,
            },
            _ => leaf,
        }
    }

    /// A condition.
    fn condition(&mut self, depth: u32) -> Expr {
        if depth > 0 && self.below(3) == 0 {
            let count = 1 + self.below(3);
            let operands =
                |programs: &mut Self| (0..count).map(|_| programs.condition(depth - 1)).collect();
            return match self.below(3) {
                0 => Expr::And(operands(self)),
                1 => Expr::Or(operands(self)),
                _ => Expr::Not(Box::new(self.condition(depth - 1))),
            };
        }
        let (value, data_type) = self.value(depth);
        let (expr, negated) = (Box::new(value), self.flip());
        match self.below(8) {
            0 => Expr::IsNull(Box::new(match self.carried(4) {
                Some(column) => Expr::Column(column),
                None => *expr,
            })),
            1 => {
                let count = 1 + self.below(if negated { 40 } else { 5 });
                let list = (0..count)
                    .map(|_| self.constant(&data_type, true))
                    .collect();
                Expr::InList {
                    expr,
                    list,
                    negated,
                }
            }
            2 | 3 if data_type == DataType::Utf8View && self.below(3) == 0 => {
                let like = self.text_constant();
                if self.flip() {
                    let pattern = self.generator.regex(like.as_deref());
                    return Expr::Regex {
                        expr,
                        pattern,
                        negated,
                        case_insensitive: self.below(4) == 0,
                    };
                }
                let needles = (0..self.below(4))
                    .map(|_| self.generator.needle(like.as_deref()))
                    .collect();
                Expr::ContainsAny { expr, needles }
            }
            2 | 3 if data_type == DataType::Utf8View => {
                let like = self.text_constant();
                let pattern = self.generator.pattern(like.as_deref());
                Expr::Like {
                    expr,
                    pattern,
                    negated,
                    case_insensitive: self.below(4) == 0,
                }
            }
            4 if data_type == DataType::Boolean => *expr,
            _ => {
                let op = match self.below(6) {
                    0 => CompareOp::Eq,
                    1 => CompareOp::NotEq,
                    2 => CompareOp::Lt,
                    3 => CompareOp::LtEq,
                    4 => CompareOp::Gt,
                    _ => CompareOp::GtEq,
                };
                let right = match self.below(3) {
                    0 => self.value_of(&data_type, depth.saturating_sub(1)),
                    _ => self.literal(&data_type),
                };
                Expr::Compare {
                    op,
                    left: expr,
                    right: Box::new(right),
                }
            }
        }
    }

    /// One time in `one_in`, and if there is one, a column that can only be carried.
    fn carried(&mut self, one_in: u32) -> Option<u32> {
        let wanted = self.below(one_in) == 0;
        let (column, _) = self.column(|data_type| physical(data_type).is_none())?;
        wanted.then_some(column)
    }

    fn rows(&mut self) -> Output {
        let count = self.below(6);
        let exprs: Vec<Expr> = (0..count)
            .map(|_| match self.carried(2) {
                Some(column) => Expr::Column(column),
                None => self.value(DEPTH).0,
            })
            .collect();
        let ordered: Vec<u32> = (0..count)
            .filter(|i| physical(&exprs[*i as usize].data_type(self.columns)).is_some())
            .collect();
        let mut order = Vec::new();
        if !ordered.is_empty() && self.flip() {
            for _ in 0..=self.below(3) {
                order.push(SortKey {
                    output: *ordered.choose(&mut self.generator.rng).expect("not empty"),
                    descending: self.flip(),
                    nulls_first: self.flip(),
                });
            }
        }
        let limited = !order.is_empty() || self.below(4) == 0;
        let limit = *[0, 1, 7, 100, 100_000]
            .choose(&mut self.generator.rng)
            .expect("not empty");
        Output::Rows {
            exprs,
            order,
            limit: limited.then_some(limit),
        }
    }

    fn aggregates(&mut self) -> Output {
        let keys = (0..self.below(4)).map(|_| self.value(1).0).collect();
        let aggregates = (0..self.below(5)).map(|_| self.aggregate()).collect();
        Output::Aggregate { keys, aggregates }
    }

    fn aggregate(&mut self) -> Aggregate {
        let filter = (self.below(5) == 0).then(|| self.condition(1));
        let (argument, data_type) = self.value(DEPTH);
        let count_type = if self.flip() {
            DataType::Int64
        } else {
            DataType::UInt64
        };
        let (function, argument, data_type) = match (self.below(5), sum_type(&data_type)) {
            (0, _) => (AggregateFunction::Count, None, count_type),
            (1, _) => {
                let argument = self.carried(4).map_or(argument, Expr::Column);
                (AggregateFunction::Count, Some(argument), count_type)
            }
            (2, _) => (AggregateFunction::Min, Some(argument), data_type),
            (3, _) | (_, None) => (AggregateFunction::Max, Some(argument), data_type),
            (_, Some(sum)) => (AggregateFunction::Sum, Some(argument), sum),
        };
        Aggregate {
            function,
            argument,
            filter,
            data_type,
        }
    }
}
