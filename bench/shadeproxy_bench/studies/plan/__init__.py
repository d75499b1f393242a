"""Study: what ``shadeproxy plan`` predicts from one run, against what other settings took."""
