"""How the page looks: light or dark as the reader's system is, from a phone to a wide screen."""

from siafu.report.plots import NUM_COLOURS

_LIGHT = ("#0b6fb8", "#c65102", "#00795c", "#a8407f", "#8a6d00", "#2a8fbd", "#5b5bd6", "#666666")
_DARK = ("#5ab4f0", "#ff9a52", "#3ccca3", "#e58bc2", "#e6c84f", "#8fd3f0", "#a5a5ff", "#b0b0b0")


def _colours(found: tuple[str, ...]) -> str:
    return "".join(f"--c{number}:{colour};" for number, colour in enumerate(found))


def _classes() -> str:
    return "".join(
        f".s{n}{{stroke:var(--c{n})}}.f{n}{{fill:var(--c{n})}}.b{n}{{background:var(--c{n})}}"
        for n in range(NUM_COLOURS)
    )


STYLE = f"""
:root{{{_colours(_LIGHT)}--back:#fff;--ink:#1c1c1c;--dim:#5a5a5a;--line:#ddd;--card:#f5f5f3;
--bad:#b00020;color-scheme:light dark}}
@media (prefers-color-scheme:dark){{:root{{{_colours(_DARK)}--back:#161616;--ink:#ececec;
--dim:#a8a8a8;--line:#3a3a3a;--card:#222;--bad:#ff8a8a}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--back);color:var(--ink);font:16px/1.5 system-ui,sans-serif}}
main{{max-width:1400px;margin:0 auto;padding:1rem clamp(.75rem,3vw,2.5rem) 4rem}}
h1{{font-size:1.6rem;margin:.5rem 0 1rem;overflow-wrap:anywhere}}
h2{{font-size:1.2rem;margin:2rem 0 .75rem}}h3{{font-size:1rem;margin:0 0 .25rem}}
.cards{{display:flex;flex-wrap:wrap;gap:.75rem;margin-bottom:1rem}}
.card{{background:var(--card);border-radius:.5rem;padding:.6rem 1rem;min-width:8rem}}
.card b{{display:block;font-size:1.5rem}}.card span{{color:var(--dim)}}
.grid2{{display:grid;gap:1.5rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr))}}
figure{{margin:0;min-width:0}}svg{{width:100%;height:auto;display:block}}
svg text{{fill:var(--dim);font-size:13px}}svg .mid{{text-anchor:middle}}
svg .right{{text-anchor:end}}svg .grid{{stroke:var(--line)}}
svg .line{{fill:none;stroke-width:2}}svg .mark{{stroke:var(--bad);stroke-width:2}}
{_classes()}
.legend{{list-style:none;display:flex;flex-wrap:wrap;gap:.25rem 1rem;margin:.25rem 0;padding:0}}
.key{{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.35em}}
.scroll{{overflow-x:auto}}table{{border-collapse:collapse}}
th,td{{text-align:left;padding:.25rem .75rem .25rem 0;vertical-align:top;
border-bottom:1px solid var(--line);font-variant-numeric:tabular-nums}}
tbody th{{font-weight:400;color:var(--dim);white-space:nowrap}}td{{overflow-wrap:anywhere}}
summary{{cursor:pointer;color:var(--dim)}}summary:focus-visible{{outline:2px solid var(--c0)}}
.failure{{border-left:4px solid var(--bad);padding-left:1rem}}.failure h2{{color:var(--bad)}}
"""
