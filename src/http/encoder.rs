//! Encoding of metrics for Prometheus. The callers define the names of the metrics.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt::Error;

/// Content type of the text that [`render`] returns.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Renders all metrics of a collector in the `OpenMetrics` text format.
pub(crate) fn render(metrics: impl Collector) -> String {
    let (mut registry, mut text) = (Registry::default(), String::new());
    registry.register_collector(Box::new(metrics));
    // Writing to a `String` cannot fail.
    text::encode(&mut text, &registry).map_or_else(|_| String::new(), |()| text)
}

pub(crate) type Labels<const N: usize> = [(&'static str, String); N];

pub(crate) struct Encoder<'a>(DescriptorEncoder<'a>);

impl<'a> Encoder<'a> {
    pub(crate) const fn new(encoder: DescriptorEncoder<'a>) -> Self {
        Self(encoder)
    }

    pub(crate) fn counters<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<N>, u64)>,
    ) -> Result<(), Error> {
        let mut metric = self.0.encode_descriptor(family(name), help, None, MetricType::Counter)?;
        for (labels, value) in values {
            metric.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, u64>(&value, None)?;
        }
        Ok(())
    }

    pub(crate) fn counter(&mut self, name: &str, help: &str, value: u64) -> Result<(), Error> {
        let mut metric = self.0.encode_descriptor(family(name), help, None, MetricType::Counter)?;
        metric.encode_counter::<NoLabelSet, u64, u64>(&value, None)
    }

    pub(crate) fn seconds_counter(&mut self, name: &str, help: &str, value: Option<f64>) -> Result<(), Error> {
        let Some(value) = value else { return Ok(()) };
        let mut metric = self.0.encode_descriptor(family(name), help, None, MetricType::Counter)?;
        metric.encode_counter::<NoLabelSet, f64, u64>(&value, None)
    }

    pub(crate) fn gauges<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<N>, f64)>,
    ) -> Result<(), Error> {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            metric.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: Option<f64>) -> Result<(), Error> {
        let Some(value) = value else { return Ok(()) };
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    /// Encodes a histogram. Each bucket consists of its upper bound and the number of values between the previous bound and this bound. The
    /// last bucket has the bound `f64::MAX`.
    pub(crate) fn buckets(&mut self, name: &str, help: &str, sum: f64, buckets: &[(f64, u64)]) -> Result<(), Error> {
        let count = buckets.iter().map(|(_, count)| count).sum();
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        metric.encode_histogram::<NoLabelSet>(sum, count, buckets, None)
    }
}

/// Returns the name of a counter without `_total`, which the encoder adds. Callers pass full names, so a text search finds them.
fn family(name: &str) -> &str {
    name.strip_suffix("_total").unwrap_or(name)
}

#[expect(clippy::cast_precision_loss, reason = "numbers for display")]
pub(crate) const fn float(number: u64) -> f64 {
    number as f64
}

#[expect(clippy::cast_precision_loss, reason = "numbers for display")]
pub(crate) const fn seconds(ms: i64) -> f64 {
    ms as f64 / 1000.0
}
