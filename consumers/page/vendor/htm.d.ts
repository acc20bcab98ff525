// Written for the page: only what it uses.
declare const htm: { bind(h: any): (parts: TemplateStringsArray, ...values: any[]) => any };
export default htm;
