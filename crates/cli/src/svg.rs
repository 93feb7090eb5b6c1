//! What all pictures need.

/// Text as it stands in an SVG, between tags and in attributes.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn a_models_name_cannot_break_the_picture() {
        assert_eq!(escaped("a<b>&\""), "a&lt;b>&amp;&quot;");
    }
}
