//! Key conflicts: records that have the same key and another content, the sign of a key that lacks a part.
//!
//! Owns what is kept of the content of some keys, and the counts. Pure. Must never grow beyond its bounds, hold a value, nor change
//! a verdict.
//!
//! Each field of a record that is kept takes eight bytes: hashes of its name and of its value, 32 bits each. Two unlike values
//! look alike once in four thousand million times.

use crate::key::Fingerprint;
use crate::record::Verdict;
use crate::values::cut;
use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use xxhash_rust::xxh3::xxh3_64;

/// Most keys whose content is kept.
const KEYS_MAX: usize = 1 << 13;
/// Keys of a window where nobody says how many.
const KEYS_UNKNOWN: u64 = 1_000_000;
/// Most fields of a record that are kept one by one; what is beyond is kept together.
const FIELDS_MAX: usize = 32;
/// How deep fields may lie; what is deeper is one field.
pub(crate) const DEPTH_MAX: usize = 4;
/// Once so many records were looked at, half as many are from then on.
const LOOKED_MAX: u64 = 1 << 17;
/// To save time, the share is made no smaller than one key in 2 to the power of this.
const CHEAP: u32 = 6;
/// Most bytes of a field's name; what is longer is cut.
const NAME_BYTES_MAX: usize = 128;
/// Most fields that conflicts are counted by.
const NAMES_MAX: usize = 64;
/// What a value is called that is no object of JSON, and what the fields are called that are kept together.
const WHOLE: &str = "the value";
const REST: &str = "the rest of the value";
const GONE: &str = "a field that is gone";

/// What to leave out of the comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompareContent {
    /// JSON pointers of fields that may differ, with all that is in them.
    pub except: Vec<String>,
}

impl CompareContent {
    fn leaves_out(&self, pointer: &str) -> bool {
        self.except.iter().any(|except| pointer.strip_prefix(except.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    }
}

/// How often repeats were compared, and differed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conflicts {
    /// Duplicates that were compared with the record that they repeat.
    pub compared: u64,
    /// Of these, the ones that differ from it.
    pub conflicts: u64,
    /// In how many of these each field differs, most first.
    pub fields: Vec<(String, u64)>,
}

impl Conflicts {
    /// Conflicts over repeats that were compared.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    pub fn share(&self) -> f64 {
        if self.compared == 0 { 0.0 } else { self.conflicts as f64 / self.compared as f64 }
    }
}

/// The fields of one record, by the hash of their names.
type Content = Vec<(u32, u32)>;

/// The content of some keys. Which, their fingerprints say.
#[derive(Debug)]
pub struct ContentSample {
    compare: CompareContent,
    /// One key of 2 to the power of this is of the sample.
    halvings: u32,
    /// What that comes to where as many keys come as the filter is made for. If there are more, the oldest make way.
    least_share: u32,
    /// Since the share was last halved.
    looked: u64,
    contents: HashMap<Fingerprint, Content>,
    order: VecDeque<Fingerprint>,
    counted: Conflicts,
}

impl ContentSample {
    /// The sample of a topic with so many keys in a window, if that is known.
    #[must_use]
    pub fn new(keys: Option<u64>, compare: CompareContent) -> Self {
        let keys = keys.unwrap_or(KEYS_UNKNOWN);
        let least_share = (0..63).find(|&halvings| keys >> halvings <= KEYS_MAX as u64).unwrap_or(63);
        let (contents, order) = (HashMap::new(), VecDeque::new());
        Self { compare, halvings: 0, least_share, looked: 0, contents, order, counted: Conflicts::default() }
    }

    /// A record with that key had that verdict. Returns the fields in which it differs from the record that it repeats, if it does.
    pub fn take(&mut self, fingerprint: Fingerprint, verdict: Verdict, value: Option<&[u8]>) -> Option<Vec<String>> {
        if !is_of(fingerprint, self.halvings) {
            return None;
        }
        if verdict == Verdict::Retracted {
            self.contents.remove(&fingerprint);
            return None;
        }
        if !matches!(verdict, Verdict::Unseen | Verdict::Duplicate) {
            return None;
        }
        if self.looked >= LOOKED_MAX && self.halvings < CHEAP {
            self.halve();
        }
        self.looked += 1;
        let object = object(value);
        let content = content(value, object.as_ref(), &self.compare);
        let known = self.contents.get(&fingerprint).filter(|_| verdict == Verdict::Duplicate);
        let Some(known) = known else {
            self.keep(fingerprint, content);
            return None;
        };
        self.counted.compared += 1;
        let differs = if *known == content { None } else { Some(difference(known, &content, object.as_ref())) };
        if let Some(fields) = &differs {
            self.counted.conflicts += 1;
            for field in fields {
                self.count(field);
            }
        }
        differs
    }

    fn keep(&mut self, fingerprint: Fingerprint, content: Content) {
        if self.contents.insert(fingerprint, content).is_some() {
            return;
        }
        self.order.push_back(fingerprint);
        if self.order.len() <= KEYS_MAX {
            return;
        }
        if self.halvings < self.least_share {
            self.halve();
        } else if let Some(oldest) = self.order.pop_front() {
            self.contents.remove(&oldest);
        }
    }

    fn halve(&mut self) {
        self.halvings += 1;
        self.looked = 0;
        let halvings = self.halvings;
        self.contents.retain(|&fingerprint, _| is_of(fingerprint, halvings));
        self.order.retain(|&fingerprint| is_of(fingerprint, halvings));
    }

    fn count(&mut self, field: &str) {
        let fields = &mut self.counted.fields;
        let is_full = fields.len() == NAMES_MAX;
        match fields.iter_mut().find(|(name, _)| name == field) {
            Some((_, count)) => *count += 1,
            None if is_full => {}
            None => fields.push((field.to_owned(), 1)),
        }
    }

    /// One key of 2 to the power of this is looked at now.
    #[must_use]
    pub const fn halvings(&self) -> u32 {
        self.halvings
    }

    /// Conflicts so far.
    #[must_use]
    pub const fn conflicts(&self) -> u64 {
        self.counted.conflicts
    }

    /// What was counted so far.
    #[must_use]
    pub fn read(&self) -> Conflicts {
        let mut counted = self.counted.clone();
        counted.fields.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        counted
    }
}

/// Whether a key is of a share of one in 2 to the power of `halvings`. The bits that choose it are not those that a filter takes.
#[must_use]
#[inline]
pub const fn is_of(fingerprint: Fingerprint, halvings: u32) -> bool {
    (fingerprint.low() ^ fingerprint.high().rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15).leading_zeros() >= halvings
}

fn hash(bytes: &[u8]) -> u32 {
    (xxh3_64(bytes) >> 32) as u32
}

fn object(value: Option<&[u8]>) -> Option<Value> {
    serde_json::from_slice(value?).ok().filter(Value::is_object)
}

fn content(value: Option<&[u8]>, object: Option<&Value>, compare: &CompareContent) -> Content {
    let Some(object) = object else { return vec![(hash(WHOLE.as_bytes()), value.map_or(0, hash))] };
    let mut content = Content::new();
    leaves(object, &mut String::new(), 0, &mut |pointer, leaf| {
        // A field that is null is as good as none.
        if !leaf.is_null() && !compare.leaves_out(pointer) {
            content.push((hash(pointer.as_bytes()), hash(leaf.to_string().as_bytes())));
        }
    });
    if content.len() > FIELDS_MAX {
        let rest = content[FIELDS_MAX..].iter().fold(0_u32, |rest, &(name, value)| {
            let pair = u64::from(name) << 32 | u64::from(value);
            rest.wrapping_add(hash(&pair.to_le_bytes()))
        });
        content.truncate(FIELDS_MAX);
        content.push((hash(REST.as_bytes()), rest));
    }
    content.sort_unstable();
    content
}

/// The names of the fields in which a record differs from what is known.
fn difference(known: &Content, content: &Content, object: Option<&Value>) -> Vec<String> {
    let value_of = |content: &Content, name: u32| content.iter().find(|&&(other, _)| other == name).map(|&(_, value)| value);
    let differs = |name: u32| value_of(known, name) != value_of(content, name);
    let mut names = Vec::new();
    if let Some(object) = object {
        leaves(object, &mut String::new(), 0, &mut |pointer, _| {
            let name = hash(pointer.as_bytes());
            if value_of(content, name).is_some() && differs(name) {
                names.push(cut(pointer, NAME_BYTES_MAX).to_owned());
            }
        });
    }
    for name in [WHOLE, REST] {
        if differs(hash(name.as_bytes())) {
            names.push(name.to_owned());
        }
    }
    if names.is_empty() {
        names.push(GONE.to_owned());
    }
    names
}

/// Visits the fields of an object that are no objects, by JSON pointer. A list is a field of its own.
pub(crate) fn leaves(value: &Value, pointer: &mut String, depth: usize, visit: &mut impl FnMut(&str, &Value)) {
    match value {
        Value::Object(members) if depth < DEPTH_MAX => {
            let length = pointer.len();
            for (name, member) in members {
                pointer.push('/');
                pointer.push_str(&name.replace('~', "~0").replace('/', "~1"));
                leaves(member, pointer, depth + 1, visit);
                pointer.truncate(length);
            }
        }
        _ if pointer.is_empty() => {}
        leaf => visit(pointer, leaf),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xxhash_rust::xxh3::xxh3_128;

    fn key(number: u64) -> Fingerprint {
        Fingerprint(xxh3_128(&number.to_le_bytes()))
    }

    fn sample(keys: u64, except: &[&str]) -> ContentSample {
        ContentSample::new(Some(keys), CompareContent { except: except.iter().map(|&pointer| pointer.to_owned()).collect() })
    }

    fn take(sample: &mut ContentSample, number: u64, verdict: Verdict, value: &str) -> Option<Vec<String>> {
        sample.take(key(number), verdict, Some(value.as_bytes()))
    }

    /// The fields in which the second differs from the first.
    fn compared(first: &str, second: &str, except: &[&str]) -> Option<Vec<String>> {
        let mut sample = sample(1_000, except);
        assert_eq!(take(&mut sample, 1, Verdict::Unseen, first), None);
        let differs = take(&mut sample, 1, Verdict::Duplicate, second);
        assert_eq!((sample.counted.compared, sample.counted.conflicts), (1, u64::from(differs.is_some())));
        differs
    }

    #[test]
    fn a_repeat_is_compared_field_by_field() {
        let first = r#"{"id":1,"version":1,"meta":{"attempt":1,"host":"a"}}"#;
        let cases = [
            (r#"{ "meta":{"host":"a","attempt":1}, "version":1, "id":1 }"#, vec![]),
            (r#"{"id":1,"version":2,"meta":{"attempt":1,"host":"a"}}"#, vec!["/version"]),
            (r#"{"id":1,"version":2,"meta":{"attempt":2,"host":"a"}}"#, vec!["/meta/attempt", "/version"]),
            (r#"{"id":1,"version":1,"meta":{"attempt":1}}"#, vec![GONE]),
            (r#"{"id":1,"version":1,"meta":{"attempt":1,"host":null}}"#, vec![GONE]),
            (r#"{"id":1,"version":1,"new":0,"meta":{"attempt":1,"host":"a"}}"#, vec!["/new"]),
            ("none", vec![WHOLE]),
        ];
        for (second, fields) in cases {
            assert_eq!(compared(first, second, &[]).unwrap_or_default(), fields, "{second}");
        }
        assert_eq!((compared("a", "a", &[]), compared("a", "b", &[])), (None, Some(vec![WHOLE.to_owned()])));
    }

    #[test]
    fn what_is_of_the_delivery_may_differ() {
        let (first, second) = (r#"{"a":{"b":1,"c":1},"ab":1}"#, r#"{"a":{"b":2,"c":2},"ab":2}"#);
        assert_eq!(compared(first, second, &["/a", "/ab"]), None);
        assert_eq!(compared(first, second, &["/a"]), Some(vec!["/ab".to_owned()]));
        assert_eq!(compared(first, second, &["/a/b", "/ab"]), Some(vec!["/a/c".to_owned()]));
    }

    #[test]
    fn fields_beyond_the_bound_are_compared_together() {
        let wide = |last: u64| {
            let fields: Vec<_> = (10..60).map(|field| format!("\"f{field}\":1")).collect();
            format!("{{{},\"last\":{last}}}", fields.join(","))
        };
        assert_eq!(compared(&wide(1), &wide(1), &[]), None);
        assert_eq!(compared(&wide(1), &wide(2), &[]), Some(vec![REST.to_owned()]));
    }

    /// A record that came out is what repeats are held against.
    #[test]
    fn what_came_out_last_counts() {
        let mut sample = sample(1_000, &[]);
        let mut next = |verdict, value| take(&mut sample, 1, verdict, value).is_some();
        assert!(!next(Verdict::Duplicate, "a"), "what it repeats came before the sample began");
        assert!(next(Verdict::Duplicate, "b"));
        assert!(!next(Verdict::Late, "c"));
        assert!(!next(Verdict::Unseen, "b"), "its window was over");
        assert!(!next(Verdict::Duplicate, "b"));
        assert!(next(Verdict::Duplicate, "a"));
        assert!(!next(Verdict::Retracted, "x"));
        assert!(!next(Verdict::Unseen, "a"));
        assert!(!next(Verdict::Duplicate, "a"));
        let Conflicts { compared, conflicts, fields } = sample.read();
        assert_eq!((compared, conflicts, fields), (4, 2, vec![(WHOLE.to_owned(), 2)]));
    }

    #[test]
    fn the_sample_is_bounded_and_follows_the_last_keys() {
        for keys in [1_000, 1_000_000] {
            let mut sample = sample(keys, &[]);
            for number in 0..100_000_u64 {
                take(&mut sample, number, Verdict::Unseen, "a");
                assert!(sample.contents.len() <= KEYS_MAX && sample.order.len() <= KEYS_MAX);
            }
            assert!(sample.contents.len() > KEYS_MAX / 4, "{keys}: {}", sample.contents.len());
            let last = (90_000..100_000_u64).filter(|&number| sample.contents.contains_key(&key(number))).count();
            assert!(last > 500, "{keys}: {last}");
        }
    }

    /// Of very many records, few are looked at, and conflicts are found in them all the same.
    #[test]
    fn the_share_of_records_that_are_looked_at_falls() {
        let mut sample = sample(1_000, &[]);
        for round in 0..10_000_u64 {
            (0..1_000).for_each(|number| drop(take(&mut sample, number, Verdict::Duplicate, if round % 2 == 0 { "a" } else { "b" })));
        }
        let counted = sample.read();
        assert_eq!(sample.halvings, CHEAP);
        assert!(counted.compared < 1_000_000, "{}", counted.compared);
        assert!((0.49..0.51).contains(&counted.share()), "{}", counted.share());
    }

    #[test]
    fn names_are_bounded() {
        let long = compared("{}", &format!("{{\"{}\":1}}", "é".repeat(1_000)), &[]).unwrap();
        assert_eq!(long[0].len(), NAME_BYTES_MAX - 1);
        let mut sample = sample(1_000, &[]);
        take(&mut sample, 1, Verdict::Unseen, "{}");
        (0..200).for_each(|field| drop(take(&mut sample, 1, Verdict::Duplicate, &format!("{{\"f{field}\":1}}"))));
        assert_eq!((sample.counted.conflicts, sample.counted.fields.len()), (200, NAMES_MAX));
    }
}
