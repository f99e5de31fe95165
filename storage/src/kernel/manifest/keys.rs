//! Reading a TOML table strictly: every key is taken by its name and type, and none may be left.

use std::ops::RangeInclusive;

use toml::{Table, Value};

use super::is_name;

/// The keys of one table: what is taken was known, what is left at the end is not.
pub(super) struct Keys {
    /// With its point, for messages.
    prefix: String,
    table: Table,
}

impl Keys {
    pub(super) fn new(prefix: &str, table: Table) -> Self {
        Self {
            prefix: prefix.to_owned(),
            table,
        }
    }

    pub(super) fn take(&mut self, key: &str) -> Option<Value> {
        self.table.remove(key)
    }

    pub(super) fn keys(&self) -> Vec<(String, Value)> {
        let all = self.table.iter();
        all.map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    fn wrong(&self, key: &str, found: &Value, wanted: &str) -> String {
        let prefix = &self.prefix;
        format!("{prefix}{key} is {}; write {wanted}", found.type_str())
    }

    pub(super) fn table(&mut self, key: &str) -> Result<Option<Keys>, String> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Table(table)) => {
                let prefix = format!("{}{key}.", self.prefix);
                Ok(Some(Keys { prefix, table }))
            }
            Some(other) => Err(self.wrong(key, &other, "a table")),
        }
    }

    pub(super) fn string(&mut self, key: &str) -> Result<Option<String>, String> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(key, &other, "text in quotes")),
        }
    }

    /// Text on one line, as it is printed in tables.
    pub(super) fn line(&mut self, key: &str, max: usize) -> Result<Option<String>, String> {
        let text = self.string(key)?;
        match &text {
            Some(line) if line.len() > max || line.chars().any(char::is_control) => Err(format!(
                "{}{key} has to be one line of {max} bytes at most",
                self.prefix
            )),
            _ => Ok(text),
        }
    }

    pub(super) fn name(&mut self, key: &str) -> Result<Option<String>, String> {
        let name = self.string(key)?;
        match &name {
            Some(text) if !is_name(text) => {
                let shown: String = text.chars().take(80).collect();
                Err(format!(
                    "{}{key} is {shown:?}; write a lower-case letter, then lower-case letters, \
                     digits and '_', 63 at most",
                    self.prefix
                ))
            }
            _ => Ok(name),
        }
    }

    pub(super) fn strings(&mut self, key: &str, max: usize) -> Result<Option<Vec<String>>, String> {
        let wanted = format!("a list of {max} texts at most");
        let items = match self.take(key) {
            None => return Ok(None),
            Some(Value::Array(items)) if items.len() <= max => items,
            Some(other) => return Err(self.wrong(key, &other, &wanted)),
        };
        let text = |item| match item {
            Value::String(text) => Ok(text),
            other => Err(self.wrong(key, &other, &wanted)),
        };
        let texts: Result<Vec<String>, String> = items.into_iter().map(text).collect();
        texts.map(Some)
    }

    pub(super) fn number(
        &mut self,
        key: &str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, String> {
        let (low, high) = (range.start(), range.end());
        let wanted = format!("a whole number from {low} to {high}");
        match self.take(key) {
            None => Ok(None),
            Some(Value::Integer(number)) => match u64::try_from(number) {
                Ok(number) if range.contains(&number) => Ok(Some(number)),
                _ => Err(format!("{}{key} is {number}; write {wanted}", self.prefix)),
            },
            Some(other) => Err(self.wrong(key, &other, &wanted)),
        }
    }

    pub(super) fn finish(self) -> Result<(), String> {
        match self.table.keys().next() {
            None => Ok(()),
            Some(key) => {
                let shown: String = key.chars().take(80).collect();
                Err(format!(
                    "{}{} is no key of a manifest; docs/kernels.md lists them",
                    self.prefix,
                    shown.escape_debug()
                ))
            }
        }
    }
}
