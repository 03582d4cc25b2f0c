//! URLs, as the URL Standard (<https://url.spec.whatwg.org>) parses them.

use url::Url;

/// Returns the canonical form of a URL, or `None` if a text is not a URL with a host.
///
/// The parser writes the scheme in lowercase. For schemes such as `http` and `https`, it also writes the host in lowercase and in Punycode
/// and leaves out a default port. This function leaves out the fragment and the query parameters that match `drop_query`, and sorts the
/// other parameters by name. Parameters with the same name keep their order, because their order can matter.
pub(super) fn canonical(text: &str, drop_query: &[String]) -> Option<String> {
    let mut url = Url::parse(text).ok()?;
    // The parser also accepts texts such as `user:17#1`, but the number sign in these texts does not begin a fragment.
    if !url.has_host() {
        return None;
    }
    url.set_fragment(None);
    if let Some(query) = url.query() {
        let is_dropped = |parameter: &str| {
            let name = name(parameter);
            drop_query.iter().any(|pattern| pattern.strip_suffix('*').map_or(pattern == name, |start| name.starts_with(start)))
        };
        let mut parameters: Vec<_> = query.split('&').filter(|one| !one.is_empty() && !is_dropped(one)).collect();
        parameters.sort_by_key(|parameter| name(parameter));
        let query = parameters.join("&");
        url.set_query((!query.is_empty()).then_some(query.as_str()));
    }
    Some(url.into())
}

fn name(parameter: &str) -> &str {
    parameter.split_once('=').map_or(parameter, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> String {
        canonical(text, &["utm_*".to_owned(), "gclid".to_owned()]).unwrap_or_else(|| panic!("{text} is a URL"))
    }

    #[test]
    fn spellings_of_one_url_are_equal() {
        for text in [
            "http://example.org/a?x=1&y=2",
            "http://example.org/a?y=2&x=1",
            "HTTP://EXAMPLE.org/a?x=1&y=2",
            "http://example.org:80/a?x=1&y=2#top",
            "http://example.org/a?utm_source=mail&x=1&gclid=7&y=2&utm_medium=e",
            "http://example.org/b/../a?&x=1&&y=2",
            " http://example.org/a?x=1&y=2\n",
        ] {
            assert_eq!(of(text), "http://example.org/a?x=1&y=2", "{text}");
        }
        assert_eq!(of("https://müller.de"), of("https://xn--mller-kva.de:443/?"));
    }

    #[test]
    fn different_urls_stay_different() {
        let texts = [
            "http://example.org/a?x=1",
            "https://example.org/a?x=1",
            "http://www.example.org/a?x=1",
            "http://example.org:8080/a?x=1",
            "http://example.org/A?x=1",
            "http://example.org/a/?x=1",
            "http://example.org/a?X=1",
            "http://example.org/a?x=1&x=2",
            "http://example.org/a?x=2&x=1",
            "http://example.org/a?gclids=1",
            "http://example.org/%61?x=1",
            "http://user@example.org/a?x=1",
        ];
        for (at, text) in texts.iter().enumerate() {
            assert!(!texts[..at].iter().any(|other| of(other) == of(text)), "{text}");
        }
        for text in ["", "/a", "example.org/a", "user:17#1", "mailto:A@example.org", "urn:isbn:X#1", "http://"] {
            assert_eq!(canonical(text, &[]), None, "{text}");
        }
    }
}
