//! Rejects YAML files whose aliases expand to too many values. An alias `*name` repeats the value that is marked with `&name`.
//!
//! A few lines with aliases of aliases can expand to more values than fit into memory. This module only counts the values and never builds
//! them.

use std::collections::BTreeMap;
use yaml_rust2::parser::{Event, MarkedEventReceiver, Parser};
use yaml_rust2::scanner::Marker;

/// Maximum number of values in a file after its aliases are expanded.
const VALUES_MAX: u64 = 100_000;

/// Returns an error if a text has too many values after its aliases are expanded. Accepts text that is not YAML, because `load::read`
/// parses the text afterwards and reports syntax errors.
pub(super) fn check(text: &str) -> Result<(), String> {
    let mut counter = Counter::default();
    // The count up to a syntax error is enough, because `load::read` stops at the same error.
    let _ = Parser::new_from_str(text).load(&mut counter, true);
    if counter.values > VALUES_MAX {
        return Err(format!("the file has more than {VALUES_MAX} values after its aliases (`*name`) are expanded; use fewer values"));
    }
    Ok(())
}

#[derive(Default)]
struct Counter {
    values: u64,
    /// Number of values that each anchor (`&name`) marks, by the parser's ID of the anchor. A list or table counts as a value, too.
    anchors: BTreeMap<usize, u64>,
    /// The lists and tables that have not ended yet, each with the ID of its anchor and the number of values that were counted before its
    /// start.
    open: Vec<(usize, u64)>,
}

impl MarkedEventReceiver for Counter {
    fn on_event(&mut self, event: Event, _: Marker) {
        match event {
            Event::Alias(anchor) => self.values = self.values.saturating_add(self.anchors.get(&anchor).copied().unwrap_or(1)),
            Event::Scalar(_, _, anchor, _) => {
                self.values = self.values.saturating_add(1);
                self.anchors.insert(anchor, 1);
            }
            Event::SequenceStart(anchor, _) | Event::MappingStart(anchor, _) => {
                self.open.push((anchor, self.values));
                self.values = self.values.saturating_add(1);
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some((anchor, before)) = self.open.pop() {
                    self.anchors.insert(anchor, self.values - before);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_that_expand_to_millions_of_values_are_refused() {
        let first = "a0: &a0 [x, x, x, x, x, x, x, x, x]".to_owned();
        let line = |depth: usize| format!("a{depth}: &a{depth} [{}]", vec![format!("*a{}", depth - 1); 9].join(", "));
        let bomb = (1..9).fold(first, |text, depth| text + "\n" + &line(depth));
        assert!(bomb.len() < 1000 && check(&bomb).is_err_and(|error| error.contains("100000 values")), "{bomb}");
    }

    #[test]
    fn ordinary_aliases_are_accepted() {
        let topic = |number: usize| format!("- {{ input: in-{number}, filter: *filter, window: *window }}\n");
        let text = "window: &window 24h\nfilter: &filter { kind: aging, capacity: 10M }\ntopics:\n".to_owned();
        check(&(0..500).fold(text, |text, number| text + &topic(number))).unwrap();
        check("no: [yaml").unwrap();
    }
}
