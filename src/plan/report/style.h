// The style sheet of a report: light and dark, wide and narrow.  Colours after Okabe and Ito, which
// people with any kind of colour vision tell apart, darkened or lightened to 3:1 on the page.
#pragma once

namespace paradyse {

inline constexpr const char* kReportStyle = R"css(
:root {
  color-scheme: light dark;
  --page: #ffffff; --ink: #1c2126; --soft: #57606a; --rule: #d5dae0; --grid: #e8ebee;
  --band: #f5f7f9; --mark: #e6f0f9;
  --c0: #0066b3; --c1: #c44e00; --c2: #00835f; --c3: #ad4b86; --c4: #9a6b00; --c5: #2f8fc4;
  --c6: #6a51a3; --c7: #7a6a55;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14181c; --ink: #e4e8ec; --soft: #9ba6b1; --rule: #39424b; --grid: #262d34;
    --band: #1b2127; --mark: #17324a;
    --c0: #58b7f2; --c1: #ff8a4c; --c2: #2fc79a; --c3: #e592c4; --c4: #e8b334; --c5: #a3d9ff;
    --c6: #b9a3ee; --c7: #c0ac92;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 68rem; padding: 1.5rem 1.25rem 4rem;
  background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 1rem; }
h2 { font-size: 1.3rem; margin: 3rem 0 .5rem; padding-top: 1rem; border-top: 1px solid var(--rule); }
h3 { font-size: 1.02rem; margin: 2rem 0 .4rem; }
p, ul { margin: .4rem 0; max-width: 46rem; }
ul { padding-left: 1.2rem; }
.note, caption { color: var(--soft); font-size: .875rem; }
dl.facts { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.25rem; margin: 0; }
dl.facts dt { color: var(--soft); }
dl.facts dd { margin: 0; overflow-wrap: anywhere; }
pre {
  margin: .75rem 0 0; padding: .7rem .9rem; white-space: pre-wrap; overflow-wrap: anywhere;
  background: var(--band);
  border: 1px solid var(--rule); border-radius: 6px; font-size: .85rem;
}
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; list-style: none; padding: 0; }
a { color: var(--c0); }
.scroll { overflow-x: auto; margin: .5rem 0; }
.scroll:focus-visible { outline: 2px solid var(--c0); }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: 0 0 .35rem; caption-side: top; }
th, td { padding: .28rem .55rem; text-align: right; white-space: nowrap; }
th { font-weight: 600; }
thead th { vertical-align: bottom; white-space: normal; border-bottom: 1px solid var(--rule); color: var(--soft); }
thead th.group { text-align: center; border-bottom: 1px solid var(--rule); }
tbody tr { border-bottom: 1px solid var(--grid); }
th:first-child, td.text, th.text { text-align: left; }
tbody th { font-weight: 500; }
tr.ours th, tr.ours td { background: var(--mark); }
tr.ours th { font-weight: 650; }
td.wide { white-space: normal; min-width: 16rem; }
td.edge, th.edge { border-left: 1px solid var(--rule); }
small { color: var(--soft); font-size: .82em; }
b { font-weight: 700; }
.share {
  display: inline-block; width: 6rem; height: .6rem; background: var(--grid); border-radius: 3px;
  overflow: hidden; vertical-align: baseline;
}
.share span { display: block; height: 100%; background: var(--c0); }
svg { display: block; width: 100%; min-width: 42rem; height: auto; font: 13px system-ui, sans-serif; }
svg text { fill: var(--ink); }
svg .tick, svg .label { fill: var(--soft); }
svg .middle { text-anchor: middle; }
svg .end { text-anchor: end; }
svg .grid { stroke: var(--grid); stroke-width: 1; }
svg .axis { stroke: var(--soft); stroke-width: 1; }
.line polyline, .line .sample, .line .cross {
  fill: none; stroke: currentColor; stroke-width: 1.8; stroke-linejoin: round;
}
.line .cross { stroke-width: 2.2; stroke-dasharray: none; }
.line circle { fill: currentColor; }
.line .leader { stroke: currentColor; stroke-width: .8; opacity: .55; }
.k-ours polyline, .k-ours .sample { stroke-width: 3.4; }
.k-published polyline, .k-published .sample { stroke-width: 2.2; stroke-dasharray: 8 4; }
.k-ablation polyline, .k-ablation .sample { stroke-dasharray: 2 3; }
.again polyline, .again .sample { stroke-dasharray: 10 3 2 3; }
.once-more polyline, .once-more .sample { stroke-dasharray: 16 4; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); }
.c3 { color: var(--c3); } .c4 { color: var(--c4); } .c5 { color: var(--c5); }
.c6 { color: var(--c6); } .c7 { color: var(--c7); } .ink { color: var(--ink); }
@media print { body { max-width: none; } h2 { break-before: page; } svg { min-width: 0; } }
)css";

}  // namespace paradyse
