"""What an object is: types of expressions, followed through functions and files."""
