//! `unseen schema`: prints the JSON schema of the configuration, for editors and the Helm chart.

pub fn run() -> anyhow::Result<()> {
    super::print(&format!("{:#}\n", crate::config::schema()))
}
