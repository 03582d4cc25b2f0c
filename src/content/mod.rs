//! Key conflicts: records with the same key and different content. Such records are a sign that the key lacks a part.
//!
//! Keeps the hashed content of a sample of keys and counts the conflicts. This module never does I/O, grows beyond its bounds, stores a
//! value, or changes a verdict.
//!
//! Each stored field of a record uses eight bytes: hashes of its name and of its value, 32 bits each. Two different values have the same
//! hash with a probability of one in four billion.

use crate::key::{Field, Fingerprint, OpenValue};
use crate::record::Verdict;
use crate::values::cut;
use std::collections::{HashMap, VecDeque};
use xxhash_rust::xxh3::xxh3_64;

const KEYS_MAX: usize = 1 << 13;
/// Assumed number of keys in a window, if the number is not configured.
const KEYS_UNKNOWN: u64 = 1_000_000;
/// Maximum number of fields that are stored individually per record. All further fields are stored as one hash.
const FIELDS_MAX: usize = 32;
/// Maximum depth of a compared field. An object at this depth counts as a single field.
pub(crate) const DEPTH_MAX: usize = 4;
/// Maximum number of records examined per minute before the sample is halved.
const EXAMINED_MAX: usize = 1 << 17;
/// Number of bytes of a value that count as one additional examined record.
const EXAMINED_BYTES: usize = 1 << 12;
/// Maximum of `halvings` when the sample is halved to save CPU time. The limit on keys can halve the sample further.
const MAX_HALVINGS_FOR_CPU: u32 = 6;
/// Maximum length of a reported field name, in bytes. Longer names are cut.
const NAME_BYTES_MAX: usize = 128;
/// Maximum number of fields with their own conflict counts.
const NAMES_MAX: usize = 64;
/// The reported name of a value that is not an object and therefore has no fields.
const WHOLE: &str = "the value";
/// The reported name of the fields that are stored as one hash.
const REST: &str = "the rest of the value";
/// The reported name if the duplicate lacks a field, or if no other field is reported.
const GONE: &str = "a field that the duplicate lacks";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompareContent {
    /// JSON Pointers (RFC 6901) of fields that are not compared. If a field is an object, nothing in the object is compared.
    pub except: Vec<String>,
}

impl CompareContent {
    /// Creates a comparison that leaves out these fields.
    ///
    /// # Errors
    /// Returns an error message if a pointer is malformed, is empty, or has more than four levels.
    pub fn new(except: Vec<String>) -> Result<Self, String> {
        for pointer in &except {
            Field::new(pointer).map_err(|error| error.to_string())?;
            if pointer.is_empty() {
                return Err("the pointer \"\" is the whole value, which leaves nothing to compare".to_owned());
            }
            if pointer.matches('/').count() > DEPTH_MAX {
                return Err(format!(
                    "`{pointer}` has more than {DEPTH_MAX} levels; the comparison treats everything below level {DEPTH_MAX} as one field, so use a parent with at most {DEPTH_MAX} levels"
                ));
            }
        }
        Ok(Self { except })
    }

    /// True if a field, or an object that contains it, is left out.
    pub(crate) fn leaves_out(&self, pointer: &str) -> bool {
        self.except.iter().any(|except| pointer.strip_prefix(except.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    }

    #[must_use]
    pub fn content(&self, value: &mut OpenValue<'_>) -> Content {
        let mut fields = Vec::new();
        let is_object = value.leaves(DEPTH_MAX, |leaf| {
            // A null field is the same as a missing field.
            if let Some(digest) = leaf.digest
                && !self.leaves_out(leaf.pointer)
            {
                fields.push((hash(leaf.pointer.as_bytes()), (digest >> 96) as u32));
            }
        });
        if !is_object {
            return Content([(hash(WHOLE.as_bytes()), value.text.map_or(0, hash))].into());
        }
        // If a name occurs several times, its last value counts.
        fields.reverse();
        fields.sort_by_key(|&(name, _)| name);
        fields.dedup_by_key(|&mut (name, _)| name);
        if fields.len() > FIELDS_MAX {
            let rest = fields.drain(FIELDS_MAX..).fold(0_u32, |rest, (name, value)| {
                let pair = u64::from(name) << 32 | u64::from(value);
                rest.wrapping_add(hash(&pair.to_le_bytes()))
            });
            fields.push((hash(REST.as_bytes()), rest));
            fields.sort_unstable();
        }
        Content(fields.into_boxed_slice())
    }
}

/// Counts of duplicates that were compared with their original record, and of conflicts: duplicates that differ from their original.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conflicts {
    pub compared: u64,
    pub conflicts: u64,
    /// The fields that differ, most frequent first. Each count is a lower bound, because only a limited number of fields can be counted.
    pub fields: Vec<(String, u64)>,
}

impl Conflicts {
    pub fn add(&mut self, other: Self) {
        self.compared += other.compared;
        self.conflicts += other.conflicts;
        for (field, number) in other.fields {
            match self.fields.iter_mut().find(|(known, _)| *known == field) {
                Some((_, sum)) => *sum += number,
                None => self.fields.push((field, number)),
            }
        }
        self.fields.sort_by_key(|(_, number)| std::cmp::Reverse(*number));
    }

    /// The share of compared duplicates that conflict, or 0 if no duplicates were compared.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    pub fn share(&self) -> f64 {
        if self.compared == 0 { 0.0 } else { self.conflicts as f64 / self.compared as f64 }
    }
}

/// Partitions have separate states, so the same key in two partitions is two different keys here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartitionKey {
    pub partition: i32,
    pub fingerprint: Fingerprint,
}

/// The fields of one record, as hashes of their pointers and of their values, sorted by the hashes of the pointers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content(Box<[(u32, u32)]>);

impl Content {
    fn get(&self, name: u32) -> Option<u32> {
        let place = self.0.binary_search_by_key(&name, |&(name, _)| name).ok()?;
        Some(self.0[place].1)
    }
}

/// The content of a duplicate and the different content of the record that it duplicates.
#[derive(Clone, Debug)]
pub struct Difference {
    known: Content,
    content: Content,
}

impl Difference {
    /// Returns the names of the fields that differ. Takes the names from `value`, the value of the duplicate, because `Content` has
    /// only hashes.
    #[must_use]
    pub fn fields(&self, value: &mut OpenValue<'_>) -> Vec<String> {
        let Self { known, content } = self;
        let [whole, rest] = [WHOLE, REST].map(|name| hash(name.as_bytes()));
        if known.get(whole).or(content.get(whole)).is_some() {
            return vec![WHOLE.to_owned()];
        }
        // If records have many fields, a field can be stored individually for one record but be part of `REST` for the other record. Then a
        // field that only one record has individually is not evidence of a difference.
        let is_wide = known.get(rest).or(content.get(rest)).is_some();
        let mut names = Vec::new();
        value.leaves(DEPTH_MAX, |leaf| {
            let name = hash(leaf.pointer.as_bytes());
            let differs = match (known.get(name), content.get(name)) {
                (Some(known), Some(content)) => known != content,
                (None, Some(_)) => !is_wide,
                (_, None) => false,
            };
            if differs {
                names.push(cut(&shown(leaf.pointer), NAME_BYTES_MAX).to_owned());
            }
        });
        names.sort_unstable();
        names.dedup();
        if known.get(rest) != content.get(rest) {
            names.push(REST.to_owned());
        }
        let is_gone = !is_wide && known.0.iter().any(|&(name, _)| content.get(name).is_none());
        if is_gone || names.is_empty() {
            names.push(GONE.to_owned());
        }
        names
    }
}

/// The approximate number of conflicts that include a field.
#[derive(Debug)]
struct Named {
    field: String,
    count: u64,
    /// The part of `count` that this field inherited from the field that it replaced in the list.
    before: u64,
}

/// The content of a sample of keys, selected by fingerprint.
#[derive(Debug)]
pub struct ContentSample {
    /// The sample contains one key in 2^`halvings`.
    halvings: u32,
    /// Minimum of `halvings`, because a larger sample would exceed the limit on keys.
    least_halvings: u32,
    /// The lowest value of `halvings` at which the planned number of keys fits into the sample. If the sample is full at this value, a new
    /// key replaces the oldest key, and the sample is not halved.
    most_halvings: u32,
    /// Number of records examined since the current minute began or the sample was last halved. A record with a large value counts as
    /// several.
    examined: usize,
    /// Content by key. `None` for a forgotten key, which keeps its position in `order`.
    contents: HashMap<PartitionKey, Option<Content>>,
    order: VecDeque<PartitionKey>,
    counted: Conflicts,
    named: Vec<Named>,
}

impl ContentSample {
    /// Creates the sample of a topic. `keys` is the number of keys in a window, if it is configured.
    #[must_use]
    pub fn new(keys: Option<u64>) -> Self {
        let keys = keys.unwrap_or(KEYS_UNKNOWN);
        let most_halvings = (0..63).find(|&halvings| keys >> halvings <= KEYS_MAX as u64).unwrap_or(63);
        Self {
            halvings: 0,
            least_halvings: 0,
            most_halvings,
            examined: 0,
            contents: HashMap::new(),
            order: VecDeque::new(),
            counted: Conflicts::default(),
            named: Vec::new(),
        }
    }

    /// Adds a record. `value` is `None` if the schema of the value has not arrived yet. If the record differs from the record that it
    /// duplicates, returns the fields that differ.
    pub fn take(
        &mut self,
        key: PartitionKey,
        verdict: Verdict,
        value: Option<OpenValue<'_>>,
        compare: &CompareContent,
    ) -> Option<Vec<String>> {
        if verdict == Verdict::Retracted {
            self.forget(key);
        }
        if !is_of(key.fingerprint, self.halvings) || !is_compared(verdict) {
            return None;
        }
        let mut value = value?;
        let content = compare.content(&mut value);
        let fields = self.look(key, verdict, value.text.map_or(0, <[u8]>::len), content)?.fields(&mut value);
        self.count(&fields);
        Some(fields)
    }

    /// Compares the content of a duplicate with the stored content of its key. Stores the content of any other record, and of a
    /// duplicate whose key has no stored content. `bytes` is the size of the record value. Returns the difference, if there is one.
    pub fn look(&mut self, key: PartitionKey, verdict: Verdict, bytes: usize, content: Content) -> Option<Difference> {
        if self.examined >= EXAMINED_MAX && self.halvings < MAX_HALVINGS_FOR_CPU {
            self.halve();
        }
        if !is_of(key.fingerprint, self.halvings) {
            return None;
        }
        self.examined += 1 + bytes / EXAMINED_BYTES;
        let known = self.contents.get(&key).and_then(Option::as_ref).filter(|_| verdict == Verdict::Duplicate);
        let Some(known) = known else {
            self.keep(key, content);
            return None;
        };
        self.counted.compared += 1;
        if *known == content {
            return None;
        }
        self.counted.conflicts += 1;
        Some(Difference { known: known.clone(), content })
    }

    fn keep(&mut self, key: PartitionKey, content: Content) {
        if self.contents.insert(key, Some(content)).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() <= KEYS_MAX {
            return;
        }
        if self.halvings < self.most_halvings {
            self.halve();
            self.least_halvings = self.halvings;
        } else if let Some(oldest) = self.order.pop_front() {
            self.contents.remove(&oldest);
        }
    }

    fn halve(&mut self) {
        self.halvings += 1;
        self.examined = 0;
        let halvings = self.halvings;
        // Drop the keys that are no longer in the sample, because their content would no longer be updated.
        self.retain(|key| is_of(key.fingerprint, halvings));
    }

    fn retain(&mut self, is_kept: impl Fn(PartitionKey) -> bool) {
        self.contents.retain(|&key, _| is_kept(key));
        self.order.retain(|&key| is_kept(key));
    }

    /// Advances by a number of minutes. After each minute with few examined records, the sample is doubled, up to the limit on keys.
    pub fn pass_minutes(&mut self, minutes: u64) {
        for _ in 0..minutes.min(MAX_HALVINGS_FOR_CPU.into()) {
            if self.examined < EXAMINED_MAX / 4 && self.halvings > self.least_halvings {
                self.halvings -= 1;
            }
            self.examined = 0;
        }
    }

    /// Forgets the content of a key, for example because another topic of the key space has emitted the key again.
    pub fn forget(&mut self, key: PartitionKey) {
        if let Some(content) = self.contents.get_mut(&key) {
            *content = None;
        }
    }

    /// Forgets the content of a partition's keys. The worker calls this when the partition is assigned or revoked, because another group
    /// member can emit newer records of these keys.
    pub fn forget_partition(&mut self, partition: i32) {
        self.retain(|key| key.partition != partition);
    }

    pub fn count(&mut self, fields: &[String]) {
        for field in fields {
            if let Some(named) = self.named.iter_mut().find(|named| named.field == *field) {
                named.count += 1;
            } else if self.named.len() < NAMES_MAX {
                self.named.push(Named { field: field.clone(), count: 1, before: 0 });
            } else if let Some(least) = self.named.iter_mut().min_by_key(|named| named.count) {
                // "Space saving" (Metwally, Agrawal and El Abbadi, 2005): a field with more than 1/`NAMES_MAX` of all counts stays in the
                // list.
                *least = Named { field: field.clone(), count: least.count + 1, before: least.count };
            }
        }
    }

    #[must_use]
    pub const fn halvings(&self) -> u32 {
        self.halvings
    }

    #[must_use]
    pub const fn conflicts(&self) -> u64 {
        self.counted.conflicts
    }

    #[must_use]
    pub fn read(&self) -> Conflicts {
        let mut fields: Vec<_> = self.named.iter().map(|named| (named.field.clone(), named.count - named.before)).collect();
        fields.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        Conflicts { fields, ..self.counted.clone() }
    }
}

/// True if a key is in the sample, which contains one key in `2^halvings`. The bits of the fingerprint are mixed, so the selection
/// is independent of the bits that a filter uses.
#[must_use]
#[inline]
pub const fn is_of(fingerprint: Fingerprint, halvings: u32) -> bool {
    (fingerprint.low() ^ fingerprint.high().rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15).leading_zeros() >= halvings
}

/// True if the content of records with this verdict is compared or stored.
#[must_use]
#[inline]
pub const fn is_compared(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Unseen | Verdict::Duplicate)
}

fn hash(bytes: &[u8]) -> u32 {
    (xxh3_64(bytes) >> 32) as u32
}

/// Escapes control characters, because names come from records and could control a terminal.
pub(crate) fn shown(name: &str) -> String {
    let mut shown = String::with_capacity(name.len());
    for character in name.chars() {
        if character.is_control() { shown.extend(character.escape_unicode()) } else { shown.push(character) }
    }
    shown
}

#[cfg(test)]
mod tests;
