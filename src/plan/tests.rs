use super::kinds::float;
use super::*;
use crate::config::Config;
use crate::filter::{AgingSizing, Growth, Spec, StableSizing, Window};
use crate::key::Fingerprint;

fn ask(keys: u64, rate: f64) -> Ask {
    Ask { keys, false_positive_rate: rate, partitions: 1, slices: 4, window_ms: None, memory_bytes: None }
}

fn report(ask: Ask, kinds: &[&str]) -> Comparison {
    Comparison::new(ask, &kinds.iter().map(|&kind| kind.to_owned()).collect::<Vec<_>>(), None).unwrap()
}

fn row(ask: Ask, kind: &str) -> Row {
    report(ask, &[kind]).kinds.remove(0)
}

fn rate_at(row: &Row, load: f64) -> f64 {
    row.loads.iter().find(|point| point.load.to_bits() == load.to_bits()).unwrap().rate
}

fn close(got: f64, expected: f64, within: f64) {
    assert!((got / expected - 1.0).abs() < within, "{got}, expected about {expected}");
}

#[test]
fn a_plain_filter_takes_the_published_bits() {
    // Bits per key of an optimal Bloom filter: 1.4427 log2(1/p).
    for (rate, bits, k) in [(1e-1, 4.8, 3), (1e-2, 9.6, 7), (1e-3, 14.4, 10), (1e-4, 19.2, 13)] {
        let bloom = row(ask(10_000_000, rate), "bloom");
        close(bloom.bits_per_key, bits, 1e-9);
        assert_eq!(bloom.k, k);
        close(rate_at(&bloom, 1.0), rate, 0.03);
    }
    assert_eq!(row(ask(10_000_000, 1e-2), "bloom").memory_bytes, 11_981_323, "9.585 bits per key");
}

#[test]
fn an_overfull_plain_filter_has_the_published_rate() {
    // With t times the planned keys, the rate is about (1 - 0.5^t)^k.
    let bloom = row(ask(10_000_000, 1e-4), "bloom");
    close(rate_at(&bloom, 2.0), 0.75_f64.powi(13), 0.15);
    close(rate_at(&bloom, 4.0), (1.0 - 0.5_f64.powi(4)).powi(13), 0.1);
}

#[test]
fn aging_keeps_its_rate_at_any_load() {
    for (rate, kind, bits) in [(1e-4, "aging", 34.0), (1e-4, "pair", 48.3), (1e-6, "aging", 44.2)] {
        let row = row(ask(10_000_000, rate), kind);
        close(row.bits_per_key, bits, 0.02);
        assert!(row.loads.iter().all(|point| point.rate <= rate), "{kind}");
        assert!(row.loads.windows(2).all(|pair| pair[0].memory_bytes <= pair[1].memory_bytes));
        assert!(row.loads[3].memory_bytes > 4 * row.memory_bytes);
    }
    let unchained = &report(ask(10_000_000, 1e-4), &["aging"]).kinds[1];
    assert_eq!(unchained.kind, "unchained");
    assert!(rate_at(unchained, 2.0) > 1e-3);
    assert_eq!(unchained.loads[3].memory_bytes, unchained.memory_bytes);
}

#[test]
fn a_mean_is_below_the_peak() {
    let report = report(ask(10_000_000, 1e-4), &[]);
    let of = |kind: &str| report.kinds.iter().find(|row| row.kind == kind).unwrap();
    // Adapted slices are at most 8/9 full, so the mean rate is about a third of the rate of full slices.
    assert!((0.3..0.35).contains(&(of("aging").mean_rate.unwrap() / 1e-4)), "{:?}", of("aging").mean_rate);
    close(of("cuckoo").mean_rate.unwrap(), 0.9 * rate_at(of("cuckoo"), 1.0), 1e-3);
    close(of("stable").mean_rate.unwrap(), 1e-4, 0.05);
    assert_eq!((of("exact").mean_rate, of("bloom").mean_rate, of("unchained").mean_rate), (Some(0.0), None, None));
    let table = report.table();
    assert!(table.contains("\nrate at        1x    1.5x      2x      4x    mean\n"), "{table}");
}

/// Slices adapt to the fullest of the previous slices plus an eighth. A plan for a pod includes this eighth.
#[test]
fn a_steady_filter_takes_the_memory_planned_for_a_pod() {
    const KEYS: u64 = 40_000;
    for slices in [1, 4] {
        let row = row(Ask { slices, ..ask(KEYS, 1e-4) }, "aging");
        let window = Window::time(i64::from(slices) * 1000, slices);
        let sizing = AgingSizing::new(window, KEYS, 1e-4).with_growth(Growth { adapt: true, ..Growth::default() });
        let mut filter = Spec::Aging(sizing).build(window);
        let (each, mut most) = (KEYS / u64::from(slices), 0);
        for number in 0..u64::from(slices) * 4 * each {
            filter.advance(i64::try_from(number / each).unwrap() * 1000 + 1);
            filter.check_and_insert(Fingerprint(xxhash_rust::xxh3::xxh3_128(&number.to_le_bytes()))).unwrap();
            most = most.max(filter.usage().bytes);
        }
        close(float(most), float(row.steady_partition_bytes), 0.01);
        assert!(row.steady_partition_bytes > row.partition_bytes && row.pod_bytes > most + POD_BASE_BYTES);
    }
}

#[test]
fn a_worker_builds_the_planned_filter() {
    for (keys, rate, partitions) in [(10_000_000, 1e-3, 4), (10_000_000, 1e-4, 3_000), (1_000_000, 1e-4, 1_000), (7, 1e-2, 3)] {
        for name in ["aging", "cuckoo", "pair"] {
            let row = row(Ask { partitions, ..ask(keys, rate) }, name);
            let topic = configured(row.configuration.as_ref().unwrap());
            let worker = topic.filter.spec(topic.window, partitions).unwrap().bytes(topic.window) * u64::from(partitions);
            assert_eq!(worker, row.memory_bytes, "{name}, {keys} keys at {rate}, {partitions} partitions");
        }
    }
}

#[test]
fn planned_reads_match_the_filter() {
    for (rate, slices) in [(1e-2, 4), (1e-4, 1), (1e-6, 4), (1e-8, 16)] {
        let row = row(Ask { slices, ..ask(1_000_000, rate) }, "aging");
        let shape = AgingSizing::new(Window::time(86_400_000, slices), 1_000_000, rate).layout;
        assert_eq!(row.k, shape.blocks_per_key * shape.k * (slices + 1));
        assert_eq!(row.reads, format!("{} blocks, {} bits", shape.blocks_per_key * (slices + 1), row.k));
    }
}

#[test]
fn an_absurdly_overfull_filter_is_wrong_nearly_always() {
    // With few bits per key and four times the planned keys, a block has very many keys. Without logarithms, their Poisson probabilities
    // would be too small for a float.
    let unchained = row(ask(1_000_000, 0.9), "unchained");
    let rates: Vec<_> = unchained.loads.iter().map(|point| point.rate).collect();
    assert!(rates.windows(2).all(|pair| pair[0] <= pair[1] * 1.05), "{rates:?}");
    assert!(rates[3] > 0.99, "{rates:?}");
    for (kind, rate) in [("unchained", 0.5), ("bloom", 0.9)] {
        let row = row(ask(1, rate), kind);
        assert!(rate_at(&row, 4.0) >= rate_at(&row, 1.0) && rate_at(&row, 4.0) > 0.0, "{kind}");
    }
}

#[test]
fn a_cuckoo_filter_takes_the_known_bits_and_chains() {
    for (rate, bits) in [(1e-3, 19.3), (1e-4, 24.1), (1e-6, 31.3)] {
        let cuckoo = row(Ask { slices: 7, ..ask(10_000_000, rate) }, "cuckoo");
        close(cuckoo.bits_per_key, bits, 0.006);
        assert!(cuckoo.loads.iter().all(|point| point.rate <= rate), "{rate}");
        // At the planned load there is one table. Above it, there is a second table of half its capacity.
        assert!(cuckoo.loads[0].memory_bytes == cuckoo.memory_bytes && cuckoo.loads[1].memory_bytes > cuckoo.memory_bytes * 3 / 2);
        assert!(cuckoo.can_retract && cuckoo.remembers);
    }
}

#[test]
fn a_stable_filter_forgets_as_it_predicts() {
    let ask = Ask { memory_bytes: Some(60_000_000), ..ask(10_000_000, 1e-3) };
    let stable = row(ask, "stable");
    // 60 MB are 57.2 MiB. The configuration line rounds them down to whole MiB.
    let plan = StableSizing::new(57 << 20, 1e-3);
    assert_eq!((stable.memory_bytes, stable.k), (plan.bytes(), plan.layout.k));
    assert_eq!((stable.remembers, stable.forgets), (false, rounded(plan.unseen_after(10_000_000))));
    assert!(stable.forgets > 0.01 && stable.forgets < 0.9, "{}", stable.forgets);
    // A plan's load counts planned keys, but the load of `predict` counts key lifetimes, so the test converts between them.
    let lifetime = plan.lifetime() / 1e7;
    stable.loads.iter().for_each(|at| close(at.rate, plan.predict(at.load / lifetime).rate, 1e-3));
    assert!(stable.loads.windows(2).all(|pair| pair[0].rate <= pair[1].rate));
    assert!(rate_at(&stable, 4.0) <= 1e-3);
}

#[test]
fn a_stable_filter_takes_its_minimum_memory() {
    let stable = row(Ask { memory_bytes: Some(100), ..ask(10, 1e-3) }, "stable");
    assert_eq!((stable.fits, stable.rate_within_memory), (Some(false), None));
    assert!(stable.configuration.unwrap().contains("memory = \"1KiB\""));
    // Ten bytes for each of 100 partitions are not enough for one partition.
    let many = row(Ask { memory_bytes: Some(1024), partitions: 100, ..ask(1_000, 1e-3) }, "stable");
    assert!(many.memory_bytes > 1024 && many.fits == Some(false));
}

fn configured(line: &str) -> crate::config::Topic {
    let text = format!(
        "[kafka]\nbootstrap_servers = \"localhost:9092\"\n[[topics]]\ninput = \"in\"\noutput = \"out\"\n\
         key = {{ record = \"key\" }}\nwindow = \"24h\"\n{line}\n"
    );
    Config::of_text(&text).topics.remove(0)
}

#[test]
fn every_line_configures_the_planned_filter() {
    for ask in [
        ask(10_000_000, 1e-4),
        Ask { partitions: 7, slices: 64, ..ask(12_345_679, 1.5e-7) },
        Ask { memory_bytes: Some(123_456_789), partitions: 3, slices: 1, ..ask(1, 0.5) },
        Ask { memory_bytes: Some(1), ..ask(99_999_999_999, 1e-9) },
    ] {
        let report = report(ask, &[]);
        let table = report.table();
        let mut lines: Vec<_> = table.lines().filter_map(|line| line.strip_prefix("  filter")).collect();
        lines.reverse();
        for row in &report.kinds {
            assert_eq!(row.configuration.is_none(), ["unchained", "bloom"].contains(&row.kind.as_str()));
            let Some(expected) = &row.configuration else { continue };
            let line = format!("filter{}", lines.pop().unwrap());
            assert_eq!(line, *expected);
            let topic = configured(&line);
            let spec = topic.filter.spec(topic.window, report.ask.partitions);
            assert_eq!(spec.map_or(0, |spec| spec.bytes(topic.window)), row.partition_bytes, "{line}");
            assert_eq!(topic.filter.kind.name(), if row.kind == "pair" { "aging" } else { &row.kind });
            assert_eq!(topic.filter.can_retract(), row.can_retract);
        }
        assert!(lines.is_empty());
    }
}

#[test]
fn exact_is_on_disk_and_never_wrong() {
    let exact = row(ask(1_000_000, 1e-4), "exact");
    assert_eq!((exact.memory_bytes, exact.disk_bytes), (0, 35_000_000));
    assert!(exact.loads.iter().all(|point| point.rate == 0.0));
}

#[test]
fn partitions_share_the_keys_and_add_up() {
    let one = row(ask(10_000_000, 1e-4), "aging");
    let many = row(Ask { partitions: 10, ..ask(10_000_000, 1e-4) }, "aging");
    assert_eq!(many.memory_bytes, many.partition_bytes * 10);
    close(many.bits_per_key, one.bits_per_key, 0.01);
    assert_eq!(one.memory_bytes, one.partition_bytes);
}

#[test]
fn memory_is_turned_into_rates() {
    let bounded = |bytes| report(Ask { memory_bytes: Some(bytes), ..ask(10_000_000, 1e-4) }, &[]);
    let report = bounded(30 << 20);
    let of = |kind: &str| report.kinds.iter().find(|row| row.kind == kind).unwrap();
    assert_eq!((of("aging").fits, of("bloom").fits, of("exact").fits), (Some(false), Some(true), Some(true)));
    // The filter fits into the memory at about the reported rate, but not at a lower rate.
    let reached = of("aging").rate_within_memory.unwrap();
    assert!(row(ask(10_000_000, reached * 1.05), "aging").memory_bytes <= 30 << 20);
    assert!(row(ask(10_000_000, reached * 0.95), "aging").memory_bytes > 30 << 20);
    assert_eq!((of("stable").memory_bytes, of("stable").rate_within_memory), (30 << 20, Some(1e-4)));
    assert_eq!(of("exact").rate_within_memory, Some(0.0));
    assert!(report.table().contains("! does not fit into 30.0 MiB"));
    assert!(of("stable").configuration.as_ref().unwrap().contains("memory = \"30MiB\""));
    let tight = bounded(1 << 10);
    assert!(tight.kinds.iter().filter(|row| row.kind == "aging").all(|row| row.rate_within_memory.is_none()));
    assert!(tight.table().contains("does not fit"));
}

#[test]
fn kinds_are_chosen_by_name() {
    let shown: Vec<_> = report(ask(10, 0.1), &["bloom", "pair"]).kinds.into_iter().map(|row| row.kind).collect();
    assert_eq!(shown, ["pair", "bloom"]);
    assert_eq!(report(ask(10, 0.1), &[]).kinds.len(), names().len());
    let error = Comparison::new(ask(10, 0.1), &["cuckold".to_owned()], None).unwrap_err().to_string();
    assert_eq!(error, format!("unknown kind `cuckold`; the kinds are {}", names().join(", ")));
}

#[test]
fn tables_fit_a_terminal() {
    let wide = Ask { partitions: 100, slices: 16, memory_bytes: Some(10 << 30), ..ask(99_999_999_999, 1e-9) };
    let report = report(wide, &[]);
    for line in report.table().lines().filter(|line| !line.starts_with("  filter")) {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn a_table_formats_small_numbers() {
    let table = report(Ask { slices: 64, ..ask(1, 0.9) }, &[]).table();
    for cell in [" 1 cell of 2 bits\n", " up to 1 line\n", " 128 B "] {
        assert!(table.contains(cell), "{table}");
    }
}

#[test]
fn a_table_shows_the_counts_of_the_sample() {
    let sample = Sample {
        records: 40,
        distinct: 30,
        repeats: 10,
        repeat_share: 0.25,
        span_ms: Some(60_000),
        window_keys: Some(30),
        ..Sample::default()
    };
    let text = Comparison::new(Ask { window_ms: Some(3_600_000), ..ask(30, 1e-2) }, &["bloom".to_owned()], Some(sample)).unwrap().table();
    assert!(
        text.starts_with("sample: 40 records, 30 distinct keys, 10 duplicates (25.0 %)\n        30 in the busiest window of 1h\n"),
        "{text}"
    );
    assert!(text.contains("to extrapolate, use --rate 1800/h --window 1h\n"), "{text}");
}
