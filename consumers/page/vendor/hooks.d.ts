// Written for the page: only what it uses.
type Update<T> = (value: T | ((before: T) => T)) => void;
export function useState<T>(value: T | (() => T)): [T, Update<T>];
export function useReducer<S, A>(reduce: (state: S, action: A) => S, state: S): [S, (action: A) => void];
export function useEffect(act: () => void | (() => void), dependencies?: any[]): void;
export function useLayoutEffect(act: () => void | (() => void), dependencies?: any[]): void;
export function useMemo<T>(make: () => T, dependencies: any[]): T;
export function useCallback<T extends (...values: any[]) => any>(callback: T, dependencies: any[]): T;
export function useRef<T>(value: T): { current: T };
export function useContext<T>(context: any): T;
export function useId(): string;
export function useErrorBoundary(on?: (error: any) => void): [any, () => void];
