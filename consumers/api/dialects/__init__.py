"""Routes in the forms of other APIs: OpenAI's, camelCase, chat streams and WebSockets."""
