// Types of the report's script, for `./dev lint`; not part of the report. The names of `ReportData` are those that the
// Rust modules next to this directory write.

/** A block of numbers: where it begins, and its length. */
type Part = [number, number];
/** Bytes and allocations. */
type Amount = [number, number];

interface Line {
  first: number;
  count: number;
  part: Part;
}

interface Points {
  times: ArrayLike<number>;
  sizes: ArrayLike<number>;
}

interface Band {
  name?: string;
  site?: number;
  pid?: number;
  device?: number;
  rest?: number;
  /** On the live page: what it opens. */
  target?: string;
}

interface Series {
  by: string;
  bands: Band[];
  rows: number;
  first: number;
  part: Part;
}

/** A decoded series. `values` is row-major. */
interface Bands extends Series {
  times: Float64Array;
  values: Float64Array;
  totals: Float64Array;
  peaks: Float64Array;
}

/** Held at the end, allocated and at the peak: bytes and count of each. */
type SiteSums = [number, number, number, number, number, number];
/** The site, its sums, freed allocations, its peak, and when that was. */
type SiteRow = [number, SiteSums, number, number, number];

interface Process {
  pid: number;
  name: string | null;
  device: number | null;
  allocations: number;
  frees: number;
  released: number;
  live: Amount;
  never_freed: Amount;
  peak_bytes: number;
  peak_ns: number;
  kinds: [string, number][];
}

interface Leak {
  site: number;
  bytes: number;
  count: number;
  began: number;
  kind: string;
  device: number | null;
  pid: number;
}

interface LeakList {
  rows: Leak[];
  total: number;
  sum: Amount;
}

interface Verdict {
  site: number;
  verdict: string;
  confidence: string;
  per_hour: number;
  live: Amount;
  is_bytes: boolean;
  summary: string;
  steps: [number, number];
  began: number;
  freed: number;
  kind: string;
  pid: number;
}

/** A leak as text reports have it. */
interface LeakText {
  site: number;
  text: string;
  advice: string;
}

interface Anomaly {
  site: number;
  time: string;
  type: string;
  bytes: number;
  baseline: number;
  kind: string;
  pid: number;
}

interface Block {
  begin: number;
  bytes: number;
  requested: number;
  state: number;
  site: number;
  segment: Segment;
}

interface Segment {
  device: number | null;
  pool: [number, number];
  part: string;
  stream: string | null;
  address: string;
  bytes: number;
  expandable: boolean;
  blocks: number;
  list: Block[];
}

interface Pool {
  device: number | null;
  pid: number | null;
  pool: string;
  stream: string | null;
  reserved_bytes: number | null;
  active_bytes: number | null;
  largest_free_bytes: number | null;
  internal: number | null;
  external: number | null;
  releasable_bytes: number | null;
  stuck_bytes: number | null;
}

interface Stack {
  label: string;
  deep: number;
  frames: number[];
  search?: string;
}

/** An allocation. `times` and `offsets` are its place in the chart. */
interface Life {
  began: number;
  ended: number | null;
  how: number;
  bytes: number;
  pid: number;
  tid: number;
  device: number;
  kind: string;
  site: number;
  address: bigint;
  times: number[];
  offsets: number[];
}

/** The time between two marks. */
interface Phase {
  label: string;
  pid: number | null;
  begin: number;
  /** Null for points, and if nothing ended it. */
  end: number | null;
}

interface ReportData {
  file: string;
  source: string;
  producer: string | null;
  events: number;
  exact: boolean;
  warnings: { text: string; count: number; inexact: boolean }[];
  memory: string;
  held_phrase: string;
  opens: string;
  wall_ms: number | null;
  span: [number, number];
  phases: Phase[];
  kind_names: string[];
  devices: { device: number; name: string; total_bytes: number | null }[];
  processes: Process[];
  peaks: { device: number | null; bytes: number; ns: number }[];
  peak: { bytes: number; ns: number };
  never_freed: Amount;
  statics: Amount;
  changes: number;
  sites: { rows: SiteRow[]; total: number; rest: SiteSums };
  series: Series[];
  lines: { kind: string; pid: number | null; line: Line; points: Points }[];
  overlays: { name: string; note?: string; line: Line; points: Points }[];
  leaks: { counted: LeakList; managed: LeakList; host: LeakList };
  growing: { ooms: { site: number; text: string }[]; headline: string; gpus: string[]; leaks: LeakText[]; leaks_total: number; suspects: Verdict[]; others: Verdict[]; anomalies: Anomaly[] };
  allocations: { count: number; total: number; first: number; part: Part };
  segments: {
    rows: Segment[];
    total: number;
    hidden_bytes: number;
    part: Part;
    pools: Pool[];
    advice: { what: string; why: string }[];
  };
  texts: string[];
  /** Function, file, line, module and language; texts by index. */
  frames: [number, number | null, number | null, number | null, string][];
  stacks: { part: Part; count: number; left_out: number };
  // Made by the script.
  bytes: Uint8Array;
  stack_list: (Stack | null)[];
  site_rows: Map<number, SiteRow>;
  site_order?: Map<number, number>;
  series_by: Map<string, Series>;
  lives?: Life[];
}

interface State {
  from: number;
  to: number;
  by: string;
  chart: string;
  list: string;
  site: number;
  band: { by: string; index: number; name: string; time: number } | null;
  life: Life | null;
  block: Block | null;
  search: string;
  clock: boolean;
  theme: string;
}

type Child = Node | string | number | null | undefined;

/** What a chart draws; see `TimeCanvas`. */
interface Painter {
  top(view: TimeCanvas): number;
  draw(context: CanvasRenderingContext2D, view: TimeCanvas): void;
  at(time: number, size: number, view: TimeCanvas): { lines: Node[]; pick?: () => void } | null;
  describe(time: number): { text: string; pick?: () => void };
}

interface Column<Row> {
  name: string;
  title?: string;
  numeric?: boolean;
  first?: boolean;
  value(row: Row): string | number;
  show(row: Row): Child;
}

interface TableOptions<Row> {
  id: string;
  caption: string;
  pick?(row: Row): void;
  isPicked?(row: Row): boolean;
  empty?: string;
}

interface FlameNode {
  name: string;
  where: string;
  foreign: boolean;
  size: number;
  count: number;
  children: Map<string, FlameNode>;
  parent: FlameNode | null;
  depth: number;
  site: number;
  ends?: boolean;
}

interface FlameBox {
  node: FlameNode;
  x: number;
  wide: number;
  above?: boolean;
}

interface Uint8ArrayConstructor {
  /** Not in all browsers. */
  fromBase64?(text: string): Uint8Array<ArrayBuffer>;
}
