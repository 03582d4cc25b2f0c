//! Aliases in YAML: `*name` stands for all that `&name` stands before.
//!
//! Owns the bound on what that comes to: aliases of aliases can make a few lines as large as memory. Must never
//! build what it counts.

use std::collections::BTreeMap;
use yaml_rust2::parser::{Event, MarkedEventReceiver, Parser};
use yaml_rust2::scanner::Marker;

/// Most values of a file, counted each time that an alias stands for them.
const VALUES_MAX: u64 = 100_000;

/// Refuses a text whose aliases stand for too much. What is no YAML is left to the parser that reads it.
pub(super) fn check(text: &str) -> Result<(), String> {
    let mut counter = Counter::default();
    // What is found up to a fault is all that is read, too.
    let _ = Parser::new_from_str(text).load(&mut counter, true);
    if counter.values > VALUES_MAX {
        return Err(format!("its aliases (`*name`) stand for more than {VALUES_MAX} values in all; write fewer of them"));
    }
    Ok(())
}

/// Counts values.
#[derive(Default)]
struct Counter {
    /// So far, in all.
    values: u64,
    /// Of each anchor.
    anchors: BTreeMap<usize, u64>,
    /// Lists and tables that have begun: the anchor of each, and how many values there were before it.
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
    fn a_few_lines_that_stand_for_millions_are_refused() {
        let first = "a0: &a0 [x, x, x, x, x, x, x, x, x]".to_owned();
        let line = |depth: usize| format!("a{depth}: &a{depth} [{}]", vec![format!("*a{}", depth - 1); 9].join(", "));
        let bomb = (1..9).fold(first, |text, depth| text + "\n" + &line(depth));
        assert!(bomb.len() < 1000 && check(&bomb).is_err_and(|error| error.contains("100000 values")), "{bomb}");
    }

    #[test]
    fn ordinary_aliases_are_taken() {
        let topic = |number: usize| format!("- {{ input: in-{number}, filter: *filter, window: *window }}\n");
        let text = "window: &window 24h\nfilter: &filter { kind: aging, capacity: 10M }\ntopics:\n".to_owned();
        check(&(0..500).fold(text, |text, number| text + &topic(number))).unwrap();
        check("no: [yaml").unwrap();
    }
}
