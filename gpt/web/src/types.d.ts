/** Templates are bundled as text. */
declare module "*.html" {
  const text: string;
  export default text;
}

interface Uint8ArrayConstructor {
  /** In browsers since 2025. */
  fromBase64?(text: string): Uint8Array<ArrayBuffer>;
}
