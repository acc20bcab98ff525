// Written for the page: only what it uses.
export const h: (type: any, props: any, ...children: any[]) => any;
export const Fragment: any;
export const createContext: <T>(value: T) => { Provider: any };
export const render: (node: any, parent: Element) => void;
