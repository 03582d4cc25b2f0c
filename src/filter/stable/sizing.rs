//! Computes the layout of a stable Bloom filter and predicts its rate and memory.
//!
//! The formulas follow a single cell. An insertion decrements it with probability P/m and sets it with probability K/m (see
//! [`CellLayout`]). Different cells are treated as independent, which is nearly true if there are many cells. Tests compare the predictions
//! with measurements.

use super::{Metadata, Stable};
use crate::filter::kind::{self, Demand};
use crate::filter::{Filter, MetadataError, Prediction, Window};

/// Maximum number of cells per key. Each of these cells costs a cache miss.
pub(super) const K_MAX: u32 = 32;
pub(super) const CELL_BITS_MAX: u32 = 4;
const BYTES_MIN: u64 = 64;
/// Maximum memory of a filter, in bytes: 256 GiB, more than any filter needs.
pub(super) const BYTES_MAX: u64 = 1 << 38;
/// Unused bytes after the last cell, because every cell is read as part of an eight-byte word.
const PAD_BYTES: u64 = 8;

/// Layout of the cells and the effect of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellLayout {
    /// Number of cells, m.
    pub cells: u64,
    /// Bits per cell, d; 1 to 4.
    pub cell_bits: u32,
    /// Number of cells that a key sets, K; 1 to 32.
    pub k: u32,
    /// Number of cells that an insertion decrements, P; 1 to m.
    pub decrements: u64,
}

impl CellLayout {
    /// The value of a key's cells after its insertion: all bits set.
    #[must_use]
    pub const fn max(self) -> u64 {
        (1 << self.cell_bits) - 1
    }

    /// Memory for the cells, in bytes, with eight bytes of padding.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.cells.saturating_mul(u64::from(self.cell_bits)).div_ceil(8).saturating_add(PAD_BYTES)
    }

    pub(super) fn is_sane(self) -> bool {
        (1..=CELL_BITS_MAX).contains(&self.cell_bits)
            && (1..=K_MAX).contains(&self.k)
            && self.cells > u64::from(self.k)
            && (1..=self.cells).contains(&self.decrements)
            && self.bytes() <= BYTES_MAX
    }

    /// Returns the layout with the fewest decrements that meets the rate, given the memory, the bits per cell, and k. `None` if no number
    /// of decrements meets the rate.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "far below 2^52")]
    fn new(bytes: u64, rate: f64, cell_bits: u32, k: u32) -> Option<Self> {
        let cells = (bytes - PAD_BYTES) * 8 / u64::from(cell_bits);
        let (each, max) = (f64::from(k), f64::from((1_u32 << cell_bits) - 1));
        // The paper's formula for P contains zeros^(-1/Max) - 1, where zeros = 1 - rate^(1/K). This expression loses no precision at small
        // rates.
        let sets_per_decrement = (-(-rate.powf(1.0 / each)).ln_1p() / max).exp_m1();
        // Round up, because fewer than P decrements would miss the rate.
        let decrements = (1.0 / (sets_per_decrement * (1.0 / each - 1.0 / cells as f64))).ceil().max(1.0);
        let layout = Self { cells, cell_bits, k, decrements: decrements.min(u64::MAX as f64) as u64 };
        layout.is_sane().then_some(layout)
    }

    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    fn process(self) -> CellProcess {
        let (m, k) = (self.cells as f64, f64::from(self.k));
        // A decrement does not count if the same insertion also sets the cell.
        let (set, down) = (k / m, self.decrements as f64 / m * (1.0 - k / m));
        CellProcess { max: (1 << self.cell_bits) - 1, down: down / (set + down), events: set + down }
    }

    /// False-positive rate at the stable point: (1 - zeros)^K, where `zeros` is the share of zero cells.
    pub(super) fn stable_rate(self) -> f64 {
        (1.0 - self.process().zeros()).powi(self.k.cast_signed())
    }

    /// Share of nonzero cells at the stable point.
    pub(super) fn stable_fill(self) -> f64 {
        1.0 - self.process().zeros()
    }

    /// Expected number of insertions until a key is forgotten: the area under the curve of the probability that a key is still remembered.
    pub(super) fn lifetime(self) -> f64 {
        let (process, k) = (self.process(), self.k.cast_signed());
        let step = 0.25 / f64::from(k);
        let mut cell = Cell::set(process);
        let (mut sum, mut before) = (0.0, 1.0);
        while before > 1e-9 {
            cell.pass(step);
            let after = cell.nonzero().powi(k);
            sum += f64::midpoint(before, after) * step;
            before = after;
        }
        sum / process.events
    }
}

/// The random process of one cell while other keys are inserted.
#[derive(Clone, Copy, Debug)]
struct CellProcess {
    /// The value of the cell after it is set.
    max: usize,
    /// Share of events that decrement the cell. The other events set it.
    down: f64,
    /// Average number of events per insertion. An event decrements the cell or sets it.
    events: f64,
}

impl CellProcess {
    /// Probability at the stable point that the cell is zero, which means that its last `max` events were decrements (theorem 2 of the
    /// paper).
    fn zeros(self) -> f64 {
        self.down.powi(i32::try_from(self.max).unwrap_or(i32::MAX))
    }
}

/// Distribution of a cell's value at a point in time. Time is counted in events.
struct Cell {
    process: CellProcess,
    /// True if a cell that reaches zero stays zero. The sum of `values` is then the probability that the cell has not been zero since it
    /// was set.
    mortal: bool,
    /// `values[v - 1]` is the probability that the cell has the value `v`.
    values: [f64; 15],
}

impl Cell {
    /// Creates the distribution for a cell that was just set and stays zero once it reaches zero.
    fn set(process: CellProcess) -> Self {
        let mut values = [0.0; 15];
        values[process.max - 1] = 1.0;
        Self { process, mortal: true, values }
    }

    const fn zero(process: CellProcess) -> Self {
        Self { process, mortal: false, values: [0.0; 15] }
    }

    fn nonzero(&self) -> f64 {
        self.values.iter().sum::<f64>().clamp(0.0, 1.0)
    }

    /// Returns the change of each probability per event. An event moves the cell to the next lower value or to the maximum.
    fn slope(&self, values: &[f64; 15]) -> [f64; 15] {
        let CellProcess { max, down, .. } = self.process;
        let may_be_set = if self.mortal { values.iter().sum() } else { 1.0 };
        let mut slope = [0.0; 15];
        for value in 0..max {
            let entered = if value + 1 < max { down * values[value + 1] } else { (1.0 - down) * may_be_set };
            slope[value] = entered - values[value];
        }
        slope
    }

    /// Advances time by `events`, which must be less than one, with one step of the classic Runge-Kutta method.
    fn pass(&mut self, events: f64) {
        let at = |slope: &[f64; 15], share: f64| std::array::from_fn(|v| self.values[v] + share * events * slope[v]);
        let a = self.slope(&self.values);
        let b = self.slope(&at(&a, 0.5));
        let c = self.slope(&at(&b, 0.5));
        let d = self.slope(&at(&c, 1.0));
        for v in 0..self.values.len() {
            self.values[v] += events / 6.0 * (a[v] + 2.0 * b[v] + 2.0 * c[v] + d[v]);
        }
    }

    /// Advances by a number of insertions. Stops early if the distribution no longer changes.
    fn pass_insertions(mut self, insertions: f64) -> Self {
        let mut left = insertions * self.process.events;
        while left > 0.0 {
            let before = self.values;
            self.pass(left.min(0.125));
            left -= 0.125;
            let change = self.values.iter().zip(before).map(|(after, before)| (after - before).abs()).sum::<f64>();
            if change < 1e-15 {
                break;
            }
        }
        self
    }
}

/// Layout and seed, computed once for all partitions that share a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizing {
    /// Layout of the cells and the effect of an insertion.
    pub layout: CellLayout,
    /// Initial state of the generator that selects the cells to decrement.
    pub seed: u64,
}

impl Sizing {
    /// Sizes a filter for a false-positive rate of at most `rate`, in (0, 1). `bytes` is limited to the range from 64 bytes to 256 GiB.
    ///
    /// Of all combinations of bits per cell and cells per key, selects the combination with the longest [`Sizing::lifetime`]. P is computed
    /// by the paper's formula and rounded up. If no combination meets the rate with this memory, the filter exceeds the rate. See
    /// [`Sizing::predict`].
    #[must_use]
    pub fn new(bytes: u64, rate: f64) -> Self {
        let bytes = bytes.clamp(BYTES_MIN, BYTES_MAX);
        let rate = rate.clamp(f64::MIN_POSITIVE, 1.0 - f64::EPSILON);
        let layouts = (1..=CELL_BITS_MAX).flat_map(|bits| (1..=K_MAX).map(move |k| (bits, k)));
        let shapes = layouts.filter_map(|(bits, k)| CellLayout::new(bytes, rate, bits, k));
        let best = shapes.map(|layout| (layout, layout.lifetime())).max_by(|a, b| a.1.total_cmp(&b.1));
        // Used if no layout meets the rate. The maximum k, with an insertion that decrements all cells, comes closest.
        let cells = (bytes - PAD_BYTES) * 8;
        let nearest = CellLayout { cells, cell_bits: 1, k: K_MAX, decrements: cells };
        Self { layout: best.map_or(nearest, |(layout, _)| layout), seed: 0 }
    }

    /// Memory of the cells, in bytes, with eight bytes of padding.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.layout.bytes()
    }

    /// Expected number of insertions until a key is forgotten. At the stable point, this is also the average number of keys that the
    /// filter remembers.
    #[must_use]
    pub fn lifetime(&self) -> f64 {
        self.layout.lifetime()
    }

    /// Predicts the rate and memory after `load` times [`Sizing::lifetime`] insertions. The rate rises until the stable point and then
    /// stays constant. If `load` is `f64::INFINITY`, the result has the rate at the stable point, by the paper's formula.
    #[must_use]
    pub fn predict(&self, load: f64) -> Prediction {
        self.after(load * self.layout.lifetime())
    }

    fn after(&self, insertions: f64) -> Prediction {
        let rate = if insertions.is_finite() {
            Cell::zero(self.layout.process()).pass_insertions(insertions.max(0.0)).nonzero().powi(self.layout.k.cast_signed())
        } else {
            self.layout.stable_rate()
        };
        Prediction { rate, bytes: self.layout.bytes() }
    }

    /// Share of keys that are forgotten at some time within the next `n` insertions of other keys.
    ///
    /// A key loses a cell at the first run of Max decrements during which no other key sets the cell. A key is forgotten when it loses the
    /// first of its K cells. It may be reported as seen again later, when other keys have set its cells. [`Sizing::unseen_after`] includes
    /// that effect.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    pub fn forgotten_after(&self, n: u64) -> f64 {
        let alive = Cell::set(self.layout.process()).pass_insertions(n as f64).nonzero();
        1.0 - alive.powi(self.layout.k.cast_signed())
    }

    /// Share of keys that are reported as unseen after `n` insertions of other keys. Each of them is a false negative. Slightly less than
    /// [`Sizing::forgotten_after`], because other keys have set the cells of some forgotten keys again.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    pub fn unseen_after(&self, n: u64) -> f64 {
        let cell = Cell { mortal: false, ..Cell::set(self.layout.process()) };
        1.0 - cell.pass_insertions(n as f64).nonzero().powi(self.layout.k.cast_signed())
    }
}

impl kind::Row for Sizing {
    type Metadata = Metadata;

    fn demanded(_window: Window, demand: &Demand) -> Self {
        Self::new(demand.bytes, demand.rate)
    }

    fn stored(_window: Window, metadata: &Metadata) -> Self {
        let stored = metadata.cells.as_ref().map(|cells| CellLayout {
            cells: cells.cells,
            cell_bits: cells.cell_bits,
            k: cells.k,
            decrements: cells.decrements,
        });
        let smallest = CellLayout { cells: 64, cell_bits: 1, k: 1, decrements: 1 };
        Self { layout: stored.filter(|layout| layout.is_sane()).unwrap_or(smallest), seed: 0 }
    }

    fn restore(self, _window: Window, metadata: &Metadata) -> Result<Box<dyn Filter>, MetadataError> {
        Ok(Box::new(Stable::from_metadata(self, metadata)?))
    }
}

impl kind::Sizing for Sizing {
    fn build(&self, _window: Window) -> Box<dyn Filter> {
        Box::new(Stable::new(*self))
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an estimate")]
    fn capacity(&self, _window: Window) -> u64 {
        self.lifetime() as u64
    }

    fn bytes(&self, _window: Window) -> u64 {
        Self::bytes(self)
    }

    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    fn predicted(&self, _window: Window, keys: u64, load: f64) -> Prediction {
        self.after(load * keys as f64)
    }

    /// The rate of a filter at the stable point is constant, so its average is also its maximum.
    fn mean_rate(&self, _window: Window) -> f64 {
        self.layout.stable_rate()
    }

    fn reads(&self, _window: Window) -> (u32, String) {
        let CellLayout { k, cell_bits, .. } = self.layout;
        let plural = if k == 1 { "" } else { "s" };
        (k, if cell_bits == 1 { format!("{k} bit{plural}") } else { format!("{k} cell{plural} of {cell_bits} bits") })
    }

    fn forgets(&self, keys: u64) -> Option<f64> {
        Some(self.unseen_after(keys))
    }
}
