"""Routes in other forms than our own: OpenAI's, camelCase, chat streams and WebSockets."""
