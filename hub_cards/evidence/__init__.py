"""What the files beside published weights say about them: how they were trained, and how well they retrieve."""
