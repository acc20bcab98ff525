// Written for the page: only what it uses.
declare class uPlot {
  constructor(options: any, data: (number | null)[][], element: HTMLElement);
  setData(data: (number | null)[][]): void;
  setSize(size: { width: number; height: number }): void;
  destroy(): void;
}
export default uPlot;
