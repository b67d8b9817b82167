"""`kafkabuf produce`: files and pipes become records, in order, and a later run resumes."""
