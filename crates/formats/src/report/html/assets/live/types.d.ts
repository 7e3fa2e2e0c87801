// Types of the live page's script, for `./dev lint`; not part of the page. The names are those that the agent sends.

interface PageColumn {
  title: string;
  right: boolean;
}

interface CellRow {
  key: string;
  state?: string;
  cells: string[];
}

interface ProcessRow extends CellRow {
  pid: number;
  gpus: number[];
}

interface LeakRow extends CellRow {
  sentence: string;
  advice: string;
  pids: number[];
}

interface FrameItem {
  text: string;
  folded: string[];
}

interface LeakDetailsRow extends LeakRow {
  user: string | null;
  gpu: number | null;
  holds: string;
  grows: string;
  sites: { location: string; holds: string; evidence: string[]; stack: FrameItem[] }[];
}

interface GpuEntry {
  key: string;
  gpu: number | null;
  name: string;
  used: string;
  /** Used and traced memory, in thousandths of the total. */
  share: [number, number] | null;
  parts: string;
  growth: string;
  full: string;
  processes: number;
}

interface IncidentEntry {
  key?: string;
  id: string;
  time: string;
  cause: string;
  pid: number | null;
  process: string;
  summary: string;
}

interface ListChange<Entry> {
  order?: string[];
  entries: Entry[];
}

interface ViewAnswer<Row> {
  columns: PageColumn[];
  rows: Row[];
  total: number;
}

interface CellTableOptions {
  id: string;
  caption: string;
  link: number;
  empty: string;
  minor?: string[];
  pick(row: CellRow): void;
  isPicked?(row: CellRow): boolean;
}

interface LiveBand extends Band {
  name: string;
  target: string;
}

interface LiveSeries {
  bands: LiveBand[];
  columns: number[][];
  others: number;
}

interface LiveHistory {
  times: number[];
  totals: number[];
  used: (number | null)[];
  series: Record<string, LiveSeries>;
}

interface RowPart {
  bands?: [number, LiveBand][];
  values?: [number, number][];
  others: number;
}

interface LiveFacts {
  host: string;
  version: string;
  incident_files: boolean;
}

/** The time between two marks. */
interface PhaseItem {
  label: string;
  pid: number | null;
  begin_ms: number;
  end_ms: number | null;
}

interface WholeEvent {
  facts: LiveFacts;
  start_ms: number;
  columns: LiveState["columns"];
  history: { times_ms: number[]; totals: number[]; used: (number | null)[]; series: Record<string, { bands: (LiveBand & { values: number[] })[]; others: number }> };
}

interface ChangeEvent {
  after_ms: number;
  row: { total: number; used: number | null; series: Record<string, RowPart> };
}

interface LiveState {
  facts: LiveFacts;
  summary: { time: string; observed: string; verdict: string; alarm: boolean; notes: { text: string; inexact: boolean }[] };
  totals: { processes: number; leaks: number; incidents: number; sites: number; cpu_percent: number; memory_bytes: number; degraded: string[] };
  columns: { processes: PageColumn[]; leaks: PageColumn[] };
  gpus: KeyedList<GpuEntry>;
  processes: KeyedList<ProcessRow>;
  leaks: KeyedList<LeakRow>;
  incidents: KeyedList<IncidentEntry>;
  /** All processes, if they were requested. */
  all: ProcessRow[] | null;
  sites: ViewAnswer<CellRow> | null;
  paused: boolean;
}
