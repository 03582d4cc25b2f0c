//! The interface between the kinds of filters and the rest of the program.
//!
//! Defines the macro `kinds!`, which generates the enums of kinds from the table in `filter/mod.rs`. Also defines the traits that the
//! folder of each in-memory kind implements to size, build, and restore filters. Code in this module never mentions a kind, so a new kind
//! needs only a folder and a row in the table.

use super::{Filter, FilterMetadata, Growth, Kind, MetadataError, Part, Prediction, SliceUsage, Spec, Usage, Window};

/// The properties of a kind of filter that do not depend on a filter's size, from [`Kind::properties`].
///
/// ```
/// use unseen::filter::Kind;
///
/// let deletes: Vec<_> = Kind::ALL.iter().filter(|kind| kind.properties().can_retract).map(|kind| kind.name()).collect();
/// assert_eq!(deletes, ["cuckoo", "exact"]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// The option that determines the size of a filter.
    pub size: Size,
    /// True if the kind remembers each key for a whole window, unless `at_max_memory = "evict_oldest"` allows the filter to forget keys
    /// early. Such a kind divides the window into slices.
    pub keeps_window: bool,
    /// True if new slices can adapt to the number of keys in the stream, up to `max_memory`. The options in [`Growth`] apply only to such a
    /// kind.
    pub grows: bool,
    /// True if a key can be deleted.
    pub can_retract: bool,
    /// The behavior of a filter above the planned number of keys, as a short text for tables.
    pub overfull: &'static str,
}

/// The option that determines the size of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// `capacity`: the number of keys in a window.
    Capacity,
    /// `memory`: the memory of the filter, regardless of the window.
    Memory {
        /// Minimum for a topic, in bytes. A smaller filter would forget nearly every key immediately.
        least: u64,
    },
    /// No option, because all fingerprints are on disk, and the kind has no filter in memory.
    Disk,
}

/// The requirements of one partition's filter. [`Kind::spec`] computes the size of the filter from the requirements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// Number of distinct keys in a window.
    pub keys: u64,
    /// Maximum share of unseen keys that may be reported as seen if each window has `keys` distinct keys.
    pub rate: f64,
    /// Memory in bytes, for kinds that are sized by memory.
    pub bytes: u64,
    /// Settings for growth, for kinds that grow.
    pub growth: Growth,
}

/// The size of a filter and the predictions that follow from the size. [`Spec::sizing`] returns it.
///
/// ```
/// use unseen::filter::{Demand, Kind, Window};
///
/// let (window, keys) = (Window::time(3_600_000, 4), 1_000_000);
/// let spec = Kind::default().spec(window, &Demand::new(keys, 1e-4)).ok_or("not in memory")?;
/// let planned = spec.sizing().predicted(window, keys, 1.0);
/// assert!(planned.rate <= 1e-4 && planned.bytes == spec.bytes(window));
/// # Ok::<(), &str>(())
/// ```
pub trait Sizing {
    /// Creates an empty filter of this size.
    fn build(&self, window: Window) -> Box<dyn Filter>;

    /// Returns the number of keys that the filter is planned to remember at a time.
    fn capacity(&self, window: Window) -> u64;

    /// Returns the memory at capacity, in bytes, without layers that an overfull filter chains.
    fn bytes(&self, window: Window) -> u64;

    /// Returns the memory of the filter, in bytes, after it has adapted to a stream with the planned number of keys in each window.
    fn steady_bytes(&self, window: Window) -> u64 {
        self.bytes(window)
    }

    /// Predicts the highest false-positive rate and the memory if each window has `load * keys` keys. `keys` is the planned number. For a
    /// kind that does not keep a window, predicts the rate and memory after `load * keys` insertions.
    fn predicted(&self, window: Window, keys: u64, load: f64) -> Prediction;

    /// Predicts the average false-positive rate over a window that has the planned number of keys.
    fn mean_rate(&self, window: Window) -> f64;

    /// Returns the maximum number of bits, cells, or slots that a lookup of an absent key reads in a filter without chained layers, and a
    /// description of these reads.
    fn reads(&self, window: Window) -> (u32, String);

    /// Returns the share of keys that are reported as unseen after `keys` other keys were inserted, or `None` if the kind keeps a window.
    fn forgets(&self, _keys: u64) -> Option<f64> {
        None
    }
}

/// The operations that the generated enums call on the [`Sizing`] of a kind, to create and restore filters.
pub(super) trait Row: Sizing + Sized {
    type Metadata: Metadata;

    fn demanded(window: Window, demand: &Demand) -> Self;

    /// Returns a sizing for a filter that is known only by its metadata. The filter can be restored but must not get new keys, because its
    /// configured capacity and rate are unknown.
    fn stored(window: Window, metadata: &Self::Metadata) -> Self;

    fn restore(self, window: Window, metadata: &Self::Metadata) -> Result<Box<dyn Filter>, MetadataError>;
}

pub(crate) trait Metadata {
    fn usage(&self) -> Usage;

    fn estimate(&self) -> f64;

    fn slices(&self) -> Vec<SliceUsage> {
        Vec::new()
    }

    fn parts(&self) -> Vec<Part>;
}

/// Generates the enums `Kind`, `Spec`, and `FilterMetadata`. A row has the Rust name of a kind, its folder, and its properties. The name
/// of the folder is also the name of the kind in configurations and checkpoints. Kinds under `disk` have no filter in memory.
macro_rules! kinds {
    (
        memory: $($(#[$doc:meta])* $kind:ident in $folder:ident $properties:tt),*;
        disk: $($(#[$disk_doc:meta])* $disk:ident in $disk_folder:ident $disk_properties:tt),*;
    ) => {
        /// Kind of filter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
            $($(#[$disk_doc])* $disk,)*
        }

        impl Kind {
            /// All kinds, the default first.
            pub const ALL: &[Self] = &[$(Self::$kind,)* $(Self::$disk,)*];

            /// Returns the name of the kind in configurations.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => stringify!($folder),)*
                    $(Self::$disk => stringify!($disk_folder),)*
                }
            }

            /// Returns the properties of the kind.
            #[must_use]
            pub const fn properties(self) -> Properties {
                match self {
                    $(Self::$kind => Properties $properties,)*
                    $(Self::$disk => Properties $disk_properties,)*
                }
            }

            /// Computes the size of a filter that meets these requirements or returns `None` if the kind has no filter in memory.
            #[must_use]
            pub fn spec(self, window: Window, demand: &Demand) -> Option<Spec> {
                match self {
                    $(Self::$kind => Some(Spec::$kind(Row::demanded(window, demand))),)*
                    $(Self::$disk => None,)*
                }
            }
        }

        /// The kind and size of a filter. A filter is built from a `Spec` and a window.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Spec {
            $($(#[$doc])* $kind($folder::Sizing),)*
        }

        impl Spec {
            /// Returns the kind of the filter.
            #[must_use]
            pub const fn kind(self) -> Kind {
                match self {
                    $(Self::$kind(_) => Kind::$kind,)*
                }
            }

            /// Returns the size, which predicts rates and memory.
            #[must_use]
            pub fn sizing(&self) -> &dyn Sizing {
                match self {
                    $(Self::$kind(sizing) => sizing,)*
                }
            }

            /// Creates the filter that metadata describes, with its bytes still zero. [`Filter::read_page`] fills them in.
            ///
            /// # Errors
            /// Returns [`MetadataError`] if the metadata does not belong to a filter of this kind and window, or if there is not enough
            /// memory.
            pub fn restore(self, window: Window, metadata: &FilterMetadata) -> Result<Box<dyn Filter>, MetadataError> {
                match (self, metadata) {
                    $((Self::$kind(sizing), FilterMetadata::$kind(metadata)) => sizing.restore(window, metadata),)*
                    _ => Err(MetadataError::Kind),
                }
            }
        }

        /// Metadata of a filter, without its bytes. Its JSON is part of the state format.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum FilterMetadata {
            $($(#[$doc])* $kind($folder::Metadata),)*
        }

        impl FilterMetadata {
            /// Returns a spec for a filter that is known only by its metadata. The filter can be restored but must not get new keys,
            /// because its configured capacity and rate are unknown.
            #[must_use]
            pub fn spec(&self, window: Window) -> Spec {
                match self {
                    $(Self::$kind(metadata) => Spec::$kind(Row::stored(window, metadata)),)*
                }
            }

            pub(crate) fn of_kind(&self) -> &dyn Metadata {
                match self {
                    $(Self::$kind(metadata) => metadata,)*
                }
            }
        }
    };
}

pub(super) use kinds;

impl Default for Kind {
    fn default() -> Self {
        Self::ALL[0]
    }
}

impl Kind {
    /// True if all fingerprints are on disk, without a filter in memory.
    #[must_use]
    pub const fn is_on_disk(self) -> bool {
        matches!(self.properties().size, Size::Disk)
    }

    /// Returns the quoted names of the kinds whose properties pass the test, for messages: `"cuckoo" or "exact"`.
    #[must_use]
    pub fn list(quote: char, test: impl Fn(Properties) -> bool) -> String {
        let names = Self::ALL.iter().filter(|kind| test(kind.properties())).map(|kind| format!("{quote}{}{quote}", kind.name()));
        names.collect::<Vec<_>>().join(" or ")
    }
}

impl Demand {
    /// Creates requirements with the default growth. `bytes` is 0: set it for kinds that are sized by memory.
    #[must_use]
    pub fn new(keys: u64, rate: f64) -> Self {
        Self { keys, rate, bytes: 0, growth: Growth::default() }
    }
}

impl Spec {
    /// Creates an empty filter of this size.
    #[must_use]
    pub fn build(self, window: Window) -> Box<dyn Filter> {
        self.sizing().build(window)
    }

    /// Returns the number of keys that the filter is planned to remember at a time.
    #[must_use]
    pub fn capacity(self, window: Window) -> u64 {
        self.sizing().capacity(window)
    }

    /// Returns the memory at capacity, in bytes, without layers that an overfull filter chains.
    #[must_use]
    pub fn bytes(self, window: Window) -> u64 {
        self.sizing().bytes(window)
    }
}

impl FilterMetadata {
    /// Returns the fill level of the filter, except that `load` and `evicted` are always 0. For `stable`, `keys` counts all insertions.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.of_kind().usage()
    }

    /// Returns the share of unseen keys that the filter reports as seen at its current fill level, by its kind's formula.
    #[must_use]
    pub fn estimate(&self) -> f64 {
        self.of_kind().estimate()
    }

    /// Returns the fill level of each slice, oldest first. Empty for kinds that do not count the keys of each slice.
    #[must_use]
    pub fn slices(&self) -> Vec<SliceUsage> {
        self.of_kind().slices()
    }

    /// Returns the stored parts of the filter, each with the number of its stored pages.
    #[must_use]
    pub fn parts(&self) -> Vec<Part> {
        self.of_kind().parts()
    }
}
