"""The page's look: system fonts, one column, two grounds. Text keeps at least 4.5:1 on either."""

from tilesieve.report.palette import FAMILY, OTHER

_DOTS = "".join(f".family-{name}{{background:{color}}}" for name, color in FAMILY.items())

CSS = (
    """
:root{--ground:#f6f7f9;--card:#fff;--ink:#1b2027;--soft:#59616d;--line:#dfe3e8;--grid:#e8ebef;--far:#b3261e;
 --mark:#ffe08a;--accent:#1d5fd0;--mid:#eceef2;color-scheme:light dark}
@media (prefers-color-scheme:dark){:root{--ground:#101318;--card:#181c22;--ink:#e6e9ed;--soft:#a0a9b5;
 --line:#2c323b;--grid:#272d35;--far:#ff9d94;--mark:#6b5310;--accent:#8ab4ff;--mid:#262b33}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",
 Roboto,"Liberation Sans",sans-serif;-webkit-text-size-adjust:100%}
main,header,footer{max-width:1240px;margin:0 auto;padding:0 20px}
header{padding-top:36px}header .note{white-space:pre-line}
h1{font-size:1.75rem;line-height:1.2;margin:0 0 6px;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:40px 0 4px}
h3{font-size:1rem;margin:0 0 2px;overflow-wrap:anywhere}
p{margin:0 0 10px;max-width:78ch}
.note,figcaption,dd{color:var(--soft)}
.note,figcaption,dl{font-size:.875rem}
.verdict{background:var(--card);border:1px solid var(--line);border-left:4px solid var(--accent);border-radius:8px;
 padding:14px 18px;margin:18px 0 0;overflow-wrap:anywhere}
.verdict p{margin:0;max-width:none}.verdict p:first-child{font-size:1.1rem;font-weight:600;margin-bottom:4px}
.scroll{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:8px;margin:10px 0}
.scroll:focus-visible,button:focus-visible,summary:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
table{border-collapse:collapse;font-size:.8125rem;font-variant-numeric:tabular-nums;width:100%}
caption{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
th,td{padding:7px 6px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
thead th{color:var(--soft);font-weight:600;vertical-align:bottom;white-space:normal;line-height:1.3}
th[scope=colgroup]{text-align:center;border-left:1px solid var(--line)}
th:last-child,td:last-child{padding-right:12px}
tbody tr:last-child>*{border-bottom:0}
tbody th,thead tr:first-child>:first-child{padding-left:12px;position:sticky;left:0;
 background:var(--card);text-align:left;font-weight:600}
tbody tr:hover>*{background:var(--ground)}
td.far{color:var(--far);font-weight:600}
td.word,th.word{text-align:left}
.dot{display:inline-block;width:.65em;height:.65em;border-radius:50%;margin-right:.5em;background:"""
    + OTHER
    + "}"
    + _DOTS
    + """
.panels,.cards{display:grid;gap:14px;margin:10px 0}
.panels{grid-template-columns:repeat(auto-fit,minmax(min(100%,370px),1fr))}
.panels.two{grid-template-columns:repeat(auto-fit,minmax(min(100%,500px),1fr))}
.panels.one{grid-template-columns:minmax(0,1fr)}
.cards{grid-template-columns:repeat(auto-fill,minmax(min(100%,350px),1fr))}
figure,.said,.finding{margin:0;min-width:0;background:var(--card);border:1px solid var(--line);border-radius:8px;
 padding:14px}
figcaption{margin-top:8px}.plot{width:100%;min-width:0}
.legend{display:flex;flex-wrap:wrap;gap:6px;margin:8px 0}
.legend button{display:inline-flex;align-items:center;gap:7px;font:inherit;font-size:.8125rem;color:var(--ink);
 background:var(--card);border:1px solid var(--line);border-radius:999px;padding:3px 11px;cursor:pointer}
.legend button[aria-pressed=false]{color:var(--soft);text-decoration:line-through;background:none}
.legend button[aria-pressed=false] svg{opacity:.3}
.only{color:var(--soft);font-weight:400;font-size:.75rem}ul{margin:6px 0;padding-left:22px}
h3.apart{margin-top:18px}h4{font-size:.875rem;margin:12px 0 2px}
.wide{grid-column:1/-1}.group{margin-top:14px}
nav{display:flex;flex-wrap:wrap;gap:6px;margin:18px 0 0}
nav a{font-size:.8125rem;color:var(--accent);text-decoration:none;background:var(--card);border:1px solid var(--line);
 border-radius:999px;padding:4px 11px}
nav a:hover,.more a:hover{text-decoration:underline}
a{color:var(--accent)}
section{scroll-margin-top:12px}
.finding{border-left:4px solid var(--far)}
.finding dl{grid-template-columns:max-content 1fr;margin:6px 0}.finding p{margin:0}
.finding .measured{font-size:1.35rem;font-weight:600;font-variant-numeric:tabular-nums}
.finding .measured .note{font-weight:400}.finding .more{font-size:.875rem}
td.prose{white-space:normal;min-width:16em}td.first{text-align:left;font-weight:600;padding-left:12px;position:sticky;left:0;background:var(--card)}
.steps{margin:8px 0;padding-left:22px;font-size:.875rem;color:var(--soft)}.steps b{color:var(--ink)}
.controls{display:flex;flex-wrap:wrap;align-items:end;gap:6px;margin:10px 0}
.controls label{display:grid;gap:2px;font-size:.8125rem;color:var(--soft);min-width:0}
.controls output{color:var(--ink);font-weight:600;font-variant-numeric:tabular-nums}
.controls .pick{flex:1 1 200px;max-width:360px}.row{display:flex;flex-wrap:nowrap;align-items:end;gap:6px;min-width:0}
.controls .row{flex:1 1 290px;max-width:100%}
.slide label{flex:1}.slide.lone{opacity:.45}
.step,select{font:inherit;font-size:1rem;color:var(--ink);background:var(--card);border:1px solid var(--line);
 border-radius:8px;min-height:44px;min-width:44px;cursor:pointer}
select{width:100%;padding:0 10px;text-overflow:ellipsis}
input[type=range]{width:100%;height:44px;margin:0;accent-color:var(--accent);cursor:pointer}
select:focus-visible,input:focus-visible,a:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:8px 18px;margin:10px 0}
.facts p{margin:0;display:grid}.facts data{font-size:1.2rem;font-weight:600;font-variant-numeric:tabular-nums}
.facts span{font-size:.8125rem;color:var(--soft)}
.tall{max-height:320px;overflow-y:auto;max-width:260px}
details{margin:8px 0}summary{cursor:pointer;padding:4px 0;color:var(--accent);font-size:.875rem}
blockquote{margin:8px 0;white-space:pre-wrap;overflow-wrap:anywhere;
 font-family:ui-serif,Georgia,"Liberation Serif",serif}
mark{background:var(--mark);color:inherit;border-radius:3px;padding:0 2px}
.ids{font:.75rem/1.7 ui-monospace,"Liberation Mono",monospace;overflow-wrap:anywhere;color:var(--soft)}
.ids mark{color:var(--ink)}
footer{padding-bottom:60px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:3px 18px;margin:10px 0}
dt{font-weight:600}dd{margin:0;overflow-wrap:anywhere}
@media (max-width:560px){main,header,footer{padding-left:12px;padding-right:12px}header{padding-top:20px}
 h1{font-size:1.35rem}figure,.said{padding:10px 8px}dl{grid-template-columns:1fr}dd{margin-bottom:6px}
 tbody th{min-width:8.5em;white-space:normal}}
"""
)
