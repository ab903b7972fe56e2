"""Formulas of all the ways in which pages write them come out once, as TeX."""

import pytest

from glmforge_corpus.extract.html.page import read_page

PROSE = "The river rose in the night, and by morning the lower road was gone; nobody had heard it go. "
TEX = "<annotation encoding='application/x-tex'>x^2</annotation>"
SUM = "<math{}><semantics><mrow><mi>x</mi></mrow>" + TEX + "</semantics></math>"
DRAWN = '<span class="MathJax_Preview">x2</span><span class="MathJax">x2</span>'


def line_with(formula):
    page = f"<article><p>{PROSE * 3}</p><p>We have {formula} here, and it goes on from there.</p></article>"
    text = read_page(page.encode()).text.decode()
    return text[text.index("We have") + 8 : text.index(" here, and")].strip() if " here, and" in text else text


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (SUM.format(""), "$x^2$"),
        (DRAWN + '<script type="math/tex">x<2</script>', "$x<2$"),
        (f'<span class="katex"><i>{SUM.format("")}</i><span class="katex-html">x2</span></span>', "$x^2$"),
        (
            '<span class="mwe-math-element"><span class="mwe-math-mathml-inline" style="display: none;">'
            r'<math alttext="{\displaystyle E=mc^{2}}"><mi>E</mi></math></span>'
            r'<img src="x" class="mwe-math-fallback-image-inline" alt="{\displaystyle E=mc^{2}}"></span>',
            "$E=mc^{2}$",
        ),
        ('<img class="latex" src="x.png" alt="a^2+b^2">', "$a^2+b^2$"),
        (
            '<mjx-container class="MathJax"><mjx-math>x2</mjx-math><mjx-assistive-mml><math><msup><mi>x</mi><mn>2</mn>'
            "</msup></math></mjx-assistive-mml></mjx-container>",
            "$x^{2}$",
        ),
        (
            "<math><mfrac><mrow><mi>a</mi><mo>+</mo><mn>1</mn></mrow><msqrt><mi>b</mi></msqrt></mfrac></math>",
            r"$\frac{a + 1}{\sqrt{b}}$",
        ),
        (
            "<math><msubsup><mo>∫</mo><mn>0</mn><mn>1</mn></msubsup><mi>sin</mi><mroot><mi>x</mi><mn>3</mn></mroot></math>",
            r"$∫_{0}^{1} \mathrm{sin} \sqrt[3]{x}$",
        ),
        (
            "<math><mtable><mtr><mtd><mn>1</mn></mtd><mtd><mn>0</mn></mtd></mtr><mtr><mtd><mn>0</mn></mtd><mtd>"
            "<mtext>if so</mtext></mtd></mtr></mtable></math>",
            r"$1 & 0 \\ 0 & \text{if so}$",
        ),
        (r"\(x^2\)", r"\(x^2\)"),
    ],
)  # fmt: skip
def test_a_formula_is_one_piece_of_tex(formula, expected):
    assert line_with(formula) == expected


@pytest.mark.parametrize(
    "formula",
    [
        SUM.format(' display="block"'),
        '<script type="math/tex; mode=display">x^2</script>',
        f'<span class="katex-display"><span class="katex">{SUM.format("")}</span></span>',
    ],
)
def test_a_displayed_formula_is_a_block(formula):
    page = f"<article><p>{PROSE * 3}</p><div>{formula}</div><p>{PROSE * 2}</p></article>"
    assert "\n\n$$x^2$$\n\n" in read_page(page.encode()).text.decode()


def test_formulas_too_deep_for_anybody_end():
    page = f"<article><p>{PROSE * 3}</p>" + "<math>" + "<mrow>" * 3000 + "x"
    assert read_page(page.encode()).text.count(b"x") >= 1
